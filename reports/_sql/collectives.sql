-- The collectives of the profiled steps, on the rank that spent longest in them, for one step; medians over finished repeats.
-- bytes: of the whole tensors. bus_gb_s as nccl-tests define it: bytes × 2 (n - 1) / n over the time of an all-reduce,
-- bytes × (n - 1) / n for a gather or scatter; unknown where not all ranks take part, and where a call moves less than
-- 64 KiB on average, which costs a latency and no bandwidth. alone_gb_s: an all-reduce of the same ranks with nothing else running.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), counted AS (
    SELECT m.*, c.kind, c.calls / c.window_steps AS calls, c.bytes / c.window_steps AS bytes,
           c.time_s / c.window_steps AS time_s, c.exposed_s / c.window_steps AS exposed_s, c.window_time_s / c.window_steps AS step_s,
           c.all_reduce_bus_gb_s AS alone_gb_s,
           CASE WHEN r.dp = r.world_size AND c.bytes >= 65536 * c.calls THEN c.bytes / nullif(c.time_s, 0) / 1e9 END
               * CASE WHEN c.kind = 'all_reduce' THEN 2 * (r.dp - 1) / r.dp
                      WHEN c.kind IN ('all_gather', 'reduce_scatter', 'all_to_all') THEN (r.dp - 1) / r.dp ELSE 1 END AS bus_gb_s
    FROM members m JOIN runs r USING (run_id) JOIN collectives c USING (run_id)
    WHERE r.status = 'ok'
)
SELECT strategy, world_size, name, spec_hash, hardware, kind, count(*) AS repeats, median(calls) AS calls, median(bytes) AS bytes,
       median(time_s) AS time_s, median(exposed_s) AS exposed_s, median(step_s) AS step_s,
       median(100 * exposed_s / nullif(step_s, 0)) AS exposed_pct, median(alone_gb_s) AS alone_gb_s,
       median(bus_gb_s) AS bus_gb_s
FROM counted
GROUP BY strategy, world_size, name, spec_hash, hardware, kind
ORDER BY world_size, strategy, name, spec_hash, hardware, kind;
