-- The loss of the first finished repeat of each set; later repeats have the same seed and data.
-- Of long runs every n-th row is drawn, about 200 of a run and at most 4,000 in all; the last one always.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), first AS (
    SELECT m.strategy, m.world_size, m.name, m.spec_hash, m.hardware, min_by(m.run_id, (r.started_at, m.run_id)) AS run_id
    FROM members m JOIN runs r USING (run_id)
    WHERE r.status = 'ok'
    GROUP BY m.strategy, m.world_size, m.name, m.spec_hash, m.hardware
), losses AS (
    SELECT f.*, s.step, max(s.loss) AS loss
    FROM first f JOIN steps s USING (run_id)
    WHERE s.loss IS NOT NULL
    GROUP BY ALL
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY run_id ORDER BY step) AS n, count(*) OVER (PARTITION BY run_id) AS total, count(*) OVER () AS rows
    FROM losses
)
SELECT * EXCLUDE (n, total, rows)
FROM numbered
WHERE n = total OR (n - 1) % CAST(greatest(1, ceil(total / 200.0), ceil(rows / 4000.0)) AS BIGINT) = 0
ORDER BY world_size, strategy, name, spec_hash, hardware, step;
