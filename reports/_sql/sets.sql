-- The sets of repeats of the study: what tells them apart, and where repeats are unsteady the first step after the change of each.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
)
SELECT m.strategy, m.world_size, m.name, m.spec_hash,
       string_agg(CAST(r.unsteady_from_step AS VARCHAR), ', ' ORDER BY r.started_at, m.run_id) FILTER (r.unsteady AND r.status = 'ok') AS unsteady_from
FROM members m JOIN runs r USING (run_id)
GROUP BY m.strategy, m.world_size, m.name, m.spec_hash
ORDER BY m.world_size, m.strategy, m.name, m.spec_hash;
