-- Every set of repeats with its framework and version, the times of its measured steps (slowest rank, seconds, one list per run),
-- and the time spent per step of each run.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, framework, hardware, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), packages AS (  -- NeMo's package has another name
    SELECT m.run_id, CAST(json_extract(d.env, '$.versions') AS MAP(VARCHAR, VARCHAR))[if(m.framework = 'nemo', 'nemo-toolkit', m.framework)] AS version
    FROM members m JOIN details d USING (run_id)
), versions AS (
    SELECT m.strategy, m.world_size, m.name, m.spec_hash, m.framework, m.hardware,
           string_agg(DISTINCT v.version, ', ' ORDER BY v.version) AS version
    FROM members m JOIN packages v USING (run_id)
    GROUP BY ALL
), slowest AS (
    SELECT m.strategy, m.world_size, m.name, m.spec_hash, m.framework, m.hardware, m.run_id, r.mean_step_s, s.step, max(s.time_s) AS time_s
    FROM members m JOIN runs r USING (run_id) JOIN steps s USING (run_id)
    WHERE r.status = 'ok' AND NOT s.is_warmup AND s.time_s IS NOT NULL
    GROUP BY ALL
), times AS (
    SELECT * EXCLUDE (step, time_s), list(time_s ORDER BY step) AS times_s
    FROM slowest
    GROUP BY ALL
), lists AS (
    SELECT * EXCLUDE (run_id, mean_step_s, times_s), list(times_s ORDER BY run_id) AS times_s, list(mean_step_s ORDER BY run_id) AS mean_steps_s
    FROM times
    GROUP BY ALL
)
SELECT g.strategy, g.world_size, g.name, g.spec_hash, g.framework, v.version, g.status, g.model, g.precision, g.platform, g.hardware, g.global_tokens,
       g.repeats, g.failed, g.tokens_per_s, g.tokens_per_s_low, g.tokens_per_s_high, g.step_time_s, g.step_time_s_low, g.step_time_s_high,
       g.peak_memory_gib, g.loss_last, g.run_ids, l.times_s, l.mean_steps_s
FROM groups g
LEFT JOIN versions v ON (v.strategy, v.world_size, v.name, v.spec_hash, v.framework, v.hardware) IS NOT DISTINCT FROM (g.strategy, g.world_size, g.name, g.spec_hash, g.framework, g.hardware)
LEFT JOIN lists l ON (l.strategy, l.world_size, l.name, l.spec_hash, l.framework, l.hardware) IS NOT DISTINCT FROM (g.strategy, g.world_size, g.name, g.spec_hash, g.framework, g.hardware)
WHERE g.study = $study
ORDER BY g.world_size, g.strategy, g.tokens_per_s DESC NULLS LAST, g.framework, g.name, g.spec_hash;
