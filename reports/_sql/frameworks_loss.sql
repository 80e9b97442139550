-- Relative difference of the loss to the reference framework's first finished run of the same model, strategy, ranks and precision,
-- per step; the largest over all finished repeats. Of long runs at most 4,000 rows in all, evenly spaced; the worst of a set has its own column.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, framework, model, precision, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), losses AS (
    SELECT m.*, r.started_at, s.step, max(s.loss) AS loss
    FROM members m JOIN runs r USING (run_id) JOIN steps s USING (run_id)
    WHERE r.status = 'ok' AND s.loss IS NOT NULL
    GROUP BY ALL
), reference AS (
    SELECT model, strategy, world_size, precision, step, min_by(loss, (started_at, run_id)) AS loss
    FROM losses
    WHERE framework = $reference
    GROUP BY model, strategy, world_size, precision, step
), compared AS (
    SELECT l.strategy, l.world_size, l.name, l.spec_hash, l.framework, l.precision, l.step, max(relative_difference(l.loss, f.loss)) AS difference
    FROM losses l JOIN reference f
      ON (l.model, l.strategy, l.world_size, l.precision, l.step) IS NOT DISTINCT FROM (f.model, f.strategy, f.world_size, f.precision, f.step)
    WHERE l.framework <> $reference
    GROUP BY ALL
), numbered AS (
    SELECT *, max(difference) OVER (PARTITION BY strategy, world_size, name, spec_hash, framework, precision) AS worst,
           row_number() OVER (PARTITION BY strategy, world_size, name, spec_hash, framework, precision ORDER BY step) AS n, count(*) OVER () AS everything
    FROM compared
)
SELECT * EXCLUDE (n, everything)
FROM numbered
WHERE (n - 1) % CAST(greatest(1, ceil(everything / 4000.0)) AS BIGINT) = 0
ORDER BY world_size, strategy, framework, name, spec_hash, step;
