-- How the measured steps of each set of repeats are spread, in seconds; slowest rank of each step.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), slowest AS (
    SELECT run_id, step, max(time_s) AS time_s
    FROM steps
    WHERE NOT is_warmup AND time_s IS NOT NULL
    GROUP BY run_id, step
)
SELECT m.strategy, m.world_size, m.name, m.spec_hash, m.hardware, count(*) AS steps, min(s.time_s) AS fastest_s,
       quantile_cont(s.time_s, 0.5) AS median_s, quantile_cont(s.time_s, 0.95) AS p95_s, max(s.time_s) AS slowest_s
FROM members m JOIN runs r USING (run_id) JOIN slowest s USING (run_id)
WHERE r.status = 'ok'
GROUP BY m.strategy, m.world_size, m.name, m.spec_hash, m.hardware
ORDER BY m.world_size, median_s, m.strategy, m.name, m.spec_hash, m.hardware;
