-- The loss of the first finished repeat of each set; later repeats have the same seed and data.
-- Of long runs every n-th step is drawn, about 200 in all.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), first AS (
    SELECT m.strategy, m.world_size, m.name, m.spec_hash, min_by(m.run_id, (r.started_at, m.run_id)) AS run_id
    FROM members m JOIN runs r USING (run_id)
    WHERE r.status = 'ok'
    GROUP BY m.strategy, m.world_size, m.name, m.spec_hash
), losses AS (
    SELECT f.*, s.step, max(s.loss) AS loss
    FROM first f JOIN steps s USING (run_id)
    WHERE s.loss IS NOT NULL
    GROUP BY ALL
)
SELECT *
FROM losses
WHERE step % greatest(1, (SELECT max(step) FROM losses) // 200) = 0
ORDER BY world_size, strategy, name, spec_hash, step;
