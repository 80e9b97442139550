-- The largest micro batch and sequence of each request that `llmbench fit STUDY` tried, the first that did not fit, and their peaks (GiB).
WITH tried AS (
    SELECT r.run_id, d.name, regexp_replace(d.name, '-(micro|seq)[0-9]+$', '') AS request, r.strategy, r.world_size, r.hardware, r.status,
           CASE WHEN d.name LIKE '%-seq%' THEN 'sequence' ELSE 'micro batch' END AS by_what,
           CASE WHEN d.name LIKE '%-seq%' THEN r.seq_len ELSE r.micro_batch END AS size, r.peak_memory_gib,
           (SELECT max(k.peak_memory_gib) FROM ranks k WHERE k.run_id = r.run_id) AS most
    FROM runs r JOIN details d USING (run_id)
    WHERE r.study = $study || '-fit' AND r.status IN ('ok', 'oom')
)
SELECT request, any_value(strategy) AS strategy, any_value(world_size) AS ranks, by_what,
       max(size) FILTER (status = 'ok') AS largest, arg_max_null(peak_memory_gib, size) FILTER (status = 'ok') AS peak_gib,
       arg_max(run_id, size) FILTER (status = 'ok') AS largest_run, arg_min(run_id, size) FILTER (status = 'oom') AS failed_run,
       min(size) FILTER (status = 'oom') AS too_large,
       arg_min_null(most, size) FILTER (status = 'oom') AS failed_gib  -- of the ranks that tell it: the first one that fails ends the others
FROM tried
GROUP BY request, by_what
ORDER BY by_what, largest DESC NULLS LAST, request;
