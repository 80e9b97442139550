-- The measured step times (slowest rank, seconds), the time spent per step with what lies between steps, and the memory of tensors of every finished run.
-- The intervals are computed from them.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, comparison_group, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), slowest AS (
    SELECT run_id, step, max(time_s) AS time_s
    FROM steps
    WHERE NOT is_warmup AND time_s IS NOT NULL
    GROUP BY run_id, step
)
SELECT m.strategy, m.world_size, m.name, m.spec_hash, m.hardware, m.comparison_group, m.run_id, r.started_at, r.platform, r.global_tokens, r.live_memory_gib, r.mean_step_s, r.usd_per_hour, r.usd_per_hour_least, r.usd_per_hour_most,
       d.turns, list(s.time_s ORDER BY s.step) AS times_s
FROM members m JOIN runs r USING (run_id) JOIN details d USING (run_id) JOIN slowest s USING (run_id)
WHERE r.status = 'ok'
GROUP BY ALL
ORDER BY m.world_size, m.strategy, m.name, m.spec_hash, m.hardware, r.started_at, m.run_id;
