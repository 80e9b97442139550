-- Every measured step of every repeat: the slowest rank's time, as in the estimate.
-- Of long runs at most 4,000 steps in all are drawn, evenly spaced; the CSV holds what is drawn.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), slowest AS (
    SELECT run_id, step, max(time_s) AS time_s
    FROM steps
    WHERE NOT is_warmup AND time_s IS NOT NULL
    GROUP BY run_id, step
), numbered AS (
    SELECT m.*, s.step, s.time_s,
           dense_rank() OVER (PARTITION BY m.name, m.spec_hash, m.hardware ORDER BY r.started_at, r.run_id) AS attempt,
           row_number() OVER (ORDER BY m.run_id, s.step) AS n, count(*) OVER () AS total
    FROM members m JOIN runs r USING (run_id) JOIN slowest s USING (run_id)
    WHERE r.status = 'ok'
)
SELECT strategy, world_size, name, spec_hash, hardware, attempt, run_id, step, time_s
FROM numbered
WHERE n % greatest(1, CAST(ceil(total / 4000.0) AS BIGINT)) = 0
ORDER BY world_size, strategy, name, spec_hash, hardware, attempt, step;
