-- Every set of repeats that ran on NVIDIA or AMD cards, with the times of its measured steps (slowest rank, one list per run) and the time spent per step of each run.
-- The same request on the cards of two vendors has one hash: a set is identified by its runs.
WITH sets_of AS (
    SELECT *, row_number() OVER (ORDER BY run_ids) AS number
    FROM groups
    WHERE study = $study AND platform IN ('cuda', 'rocm')
), members AS (
    SELECT number, unnest(run_ids) AS run_id
    FROM sets_of
), slowest AS (
    SELECT m.number, m.run_id, r.mean_step_s, s.step, max(s.time_s) AS time_s
    FROM members m JOIN runs r USING (run_id) JOIN steps s USING (run_id)
    WHERE r.status = 'ok' AND NOT s.is_warmup AND s.time_s IS NOT NULL
    GROUP BY ALL
), times AS (
    SELECT number, run_id, mean_step_s, list(time_s ORDER BY step) AS times_s
    FROM slowest
    GROUP BY ALL
), lists AS (
    SELECT number, list(times_s ORDER BY run_id) AS times_s, list(mean_step_s ORDER BY run_id) AS mean_steps_s
    FROM times
    GROUP BY number
)
SELECT g.strategy, g.world_size, g.name, g.spec_hash, g.platform, g.hardware, g.framework, g.model, g.precision, g.seq_len, g.global_tokens,
       g.tokens_per_s_per_gpu, g.tflops_per_gpu, g.step_time_s, g.peak_memory_gib, g.loss_last, g.run_ids, l.times_s, l.mean_steps_s
FROM sets_of g LEFT JOIN lists l USING (number)
ORDER BY g.tokens_per_s_per_gpu DESC NULLS LAST, g.strategy, g.name, g.spec_hash, g.platform;
