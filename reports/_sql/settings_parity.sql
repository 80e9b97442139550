-- Relative difference of the loss to the first finished repeat of the baseline's settings, per step; the largest over all
-- finished repeats. Only sets whose data have the same fingerprint: their tokens were the same.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, precision, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), losses AS (
    SELECT m.*, r.started_at, d.spec ->> '$.data.fingerprint' AS fingerprint, s.step, max(s.loss) AS loss
    FROM members m JOIN runs r USING (run_id) JOIN details d USING (run_id) JOIN steps s USING (run_id)
    WHERE r.status = 'ok' AND s.loss IS NOT NULL
    GROUP BY ALL
), reference AS (
    SELECT fingerprint, step, min_by(loss, (started_at, run_id)) AS loss
    FROM losses
    WHERE spec_hash = $baseline AND hardware IS NOT DISTINCT FROM $hardware
    GROUP BY fingerprint, step
)
SELECT l.strategy, l.world_size, l.name, l.spec_hash, l.hardware, l.precision, l.step, max(relative_difference(l.loss, f.loss)) AS difference
FROM losses l JOIN reference f USING (fingerprint, step)
WHERE l.spec_hash <> $baseline OR l.hardware IS DISTINCT FROM $hardware
GROUP BY l.strategy, l.world_size, l.name, l.spec_hash, l.hardware, l.precision, l.step
ORDER BY l.world_size, l.strategy, l.name, l.spec_hash, l.hardware, l.step;
