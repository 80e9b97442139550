-- Relative difference of the loss to the first single process of the same comparison group, per step;
-- the largest over all finished repeats.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), losses AS (
    SELECT m.*, r.comparison_group, r.started_at, s.step, max(s.loss) AS loss
    FROM members m JOIN runs r USING (run_id) JOIN steps s USING (run_id)
    WHERE r.status = 'ok' AND s.loss IS NOT NULL
    GROUP BY ALL
), reference AS (
    SELECT comparison_group, step, min_by(loss, (started_at, run_id)) AS loss
    FROM losses
    WHERE strategy = 'single'
    GROUP BY comparison_group, step
), compared AS (
    SELECT l.strategy, l.world_size, l.name, l.spec_hash, l.hardware, l.step, max(relative_difference(l.loss, f.loss)) AS difference
    FROM losses l JOIN reference f USING (comparison_group, step)
    WHERE l.strategy <> 'single'
    GROUP BY ALL
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY strategy, world_size, name, spec_hash, hardware ORDER BY step) AS n,
           count(*) OVER (PARTITION BY strategy, world_size, name, spec_hash, hardware) AS total, count(*) OVER () AS rows
    FROM compared
)
SELECT * EXCLUDE (n, total, rows)
FROM numbered
WHERE n = total OR (n - 1) % CAST(greatest(1, ceil(total / 200.0), ceil(rows / 4000.0)) AS BIGINT) = 0
ORDER BY world_size, strategy, name, spec_hash, hardware, step;
