-- The largest relative difference of the loss to the first single process, over all steps and repeats.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, precision, unnest(run_ids) AS run_id
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
)
SELECT l.strategy, l.world_size, l.name, l.spec_hash, l.hardware, l.precision, count(DISTINCT l.run_id) AS repeats,
       count(DISTINCT l.step) AS steps, max(relative_difference(l.loss, f.loss)) AS worst, max_by(l.loss, (l.step, l.run_id)) AS last_loss
FROM losses l JOIN reference f USING (comparison_group, step)
WHERE l.strategy <> 'single'
GROUP BY l.strategy, l.world_size, l.name, l.spec_hash, l.hardware, l.precision
ORDER BY l.world_size, l.strategy, l.name, l.spec_hash, l.hardware;
