-- The sets of repeats of the study: what identifies them, their frameworks, how they split the model, and where repeats are unsteady the first step after the change of each.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
)
SELECT m.strategy, m.world_size, m.name, m.spec_hash, m.hardware, string_agg(DISTINCT r.framework, ' + ' ORDER BY r.framework) AS framework,
       max(r.dp) AS dp, max(r.tp) AS tp, max(r.pp) AS pp, max(r.cp) AS cp, max(r.ep) AS ep,
       max(CAST(d.spec->>'$.strategy.dp_replicate' AS BIGINT)) AS dp_replicate,
       string_agg(CAST(r.unsteady_from_step AS VARCHAR), ', ' ORDER BY r.started_at, m.run_id) FILTER (r.unsteady AND r.status = 'ok') AS unsteady_from
FROM members m JOIN runs r USING (run_id) JOIN details d USING (run_id)
GROUP BY m.strategy, m.world_size, m.name, m.spec_hash, m.hardware
ORDER BY m.world_size, m.strategy, m.name, m.spec_hash, m.hardware;
