-- Every set of repeats that ran on NVIDIA or AMD cards, with the times of its measured steps (slowest rank, one list a run).
WITH members AS (
    SELECT spec_hash, name, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), slowest AS (
    SELECT run_id, step, max(time_s) AS time_s
    FROM steps
    WHERE NOT is_warmup AND time_s IS NOT NULL
    GROUP BY run_id, step
), times AS (
    SELECT m.spec_hash, m.name, m.run_id, list(s.time_s ORDER BY s.step) AS times_s
    FROM members m JOIN runs r USING (run_id) JOIN slowest s USING (run_id)
    WHERE r.status = 'ok'
    GROUP BY ALL
), lists AS (
    SELECT spec_hash, name, list(times_s ORDER BY run_id) AS times_s
    FROM times
    GROUP BY ALL
)
SELECT g.strategy, g.world_size, g.name, g.spec_hash, g.platform, g.hardware, g.framework, g.model, g.precision, g.seq_len, g.global_batch_tokens,
       g.tokens_per_s_per_gpu, g.tflops_per_gpu, g.step_time_s, g.peak_memory_gib, g.loss_last, g.run_ids, l.times_s
FROM groups g LEFT JOIN lists l ON l.spec_hash IS NOT DISTINCT FROM g.spec_hash AND l.name IS NOT DISTINCT FROM g.name
WHERE g.study = $study AND g.platform IN ('cuda', 'rocm')
ORDER BY g.tokens_per_s_per_gpu DESC NULLS LAST, g.strategy, g.name, g.spec_hash;
