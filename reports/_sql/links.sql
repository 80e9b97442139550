-- Bytes over bandwidth beside the time that communication took, for one profiled step of runs with one rank per node; medians over
-- finished repeats. sent_bytes: what a rank sends in a ring: of an all-reduce's tensor 2 (n - 1) / n, of an all-gather's and a
-- reduce-scatter's (n - 1) / n, and of a reduce-scatter's twice that with gloo, which implements it as an all-reduce.
-- link_gb_s: from rank 0 to rank 1 with nothing else running. wire_s: sent_bytes over link_gb_s. alone_s: the step's calls once more, all
-- ranks beginning together and nothing computed; ratio: alone_s over wire_s, its ends the least and the most of the repeats.
-- time_s and exposed_s: inside the step, waiting for other ranks included. Calls of less than 64 KiB on average, which cost a
-- latency and no bandwidth, are left out.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), counted AS (
    SELECT m.*, c.kind, c.calls / c.window_steps AS calls, c.link_gb_s, c.alone_s / c.window_steps AS alone_s,
           c.bytes / c.window_steps * (r.dp - 1) / r.dp
               * CASE WHEN c.kind = 'all_reduce' OR (c.kind = 'reduce_scatter' AND (d.env ->> 'backend') = 'gloo') THEN 2 ELSE 1 END AS sent_bytes,
           c.time_s / c.window_steps AS time_s, c.exposed_s / c.window_steps AS exposed_s
    FROM members m JOIN runs r USING (run_id) JOIN details d USING (run_id) JOIN collectives c USING (run_id)
    WHERE r.status = 'ok' AND r.nodes > 1 AND r.nodes = r.world_size AND r.dp = r.world_size
      AND c.kind IN ('all_reduce', 'all_gather', 'reduce_scatter') AND c.bytes >= 65536 * c.calls AND c.link_gb_s IS NOT NULL
), timed AS (
    SELECT *, sent_bytes / link_gb_s / 1e9 AS wire_s FROM counted
)
SELECT strategy, world_size, name, spec_hash, kind, count(*) AS repeats, median(calls) AS calls, median(sent_bytes) AS sent_bytes,
       median(link_gb_s) AS link_gb_s, median(wire_s) AS wire_s, median(alone_s) AS alone_s, median(alone_s / wire_s) AS ratio,
       min(alone_s / wire_s) AS ratio_low, max(alone_s / wire_s) AS ratio_high, median(time_s) AS time_s, median(exposed_s) AS exposed_s
FROM timed
GROUP BY strategy, world_size, name, spec_hash, kind
ORDER BY world_size, strategy, name, spec_hash, kind;
