-- Step by step, the first finished repeat of each set: loss, learning rate, memory, and time with its share of the measured steps.
-- Of long runs about 200 rows each and at most 4,000 in all, evenly spaced.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), first AS (
    SELECT m.strategy, m.world_size, m.name, m.spec_hash, m.hardware, min_by(m.run_id, (r.started_at, m.run_id)) AS run_id
    FROM members m JOIN runs r USING (run_id)
    WHERE r.status = 'ok'
    GROUP BY m.strategy, m.world_size, m.name, m.spec_hash, m.hardware
), rows_of AS (
    SELECT f.*, s.step, max(s.loss) AS loss, max(s.lr) AS lr, max(s.memory_allocated_gib) AS memory_allocated_gib,
           max(s.time_s) FILTER (NOT s.is_warmup) AS time_s
    FROM first f JOIN steps s USING (run_id)
    GROUP BY ALL
), shared AS (
    SELECT *, if(time_s IS NULL, NULL, 100 * cume_dist() OVER (PARTITION BY run_id, time_s IS NULL ORDER BY time_s)) AS share_pct,
           row_number() OVER (PARTITION BY run_id ORDER BY step) AS n, count(*) OVER (PARTITION BY run_id) AS total, count(*) OVER () AS everything
    FROM rows_of
)
SELECT * EXCLUDE (run_id, n, total, everything)
FROM shared
WHERE n = total OR (n - 1) % CAST(greatest(1, ceil(total / 200.0), ceil(everything / 4000.0)) AS BIGINT) = 0
ORDER BY world_size, strategy, name, spec_hash, hardware, step;
