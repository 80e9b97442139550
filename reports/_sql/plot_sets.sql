-- The figures of every set of repeats with their 95 % intervals (of memory the least and the most of the repeats).
-- The rates of copies between host and device are those of the runs' own batches and figures, medians over repeats.
WITH copies AS (
    SELECT g.spec_hash, g.run_ids, median(r.step_h2d_gb_s) AS step_h2d_gb_s, median(r.step_d2h_gb_s) AS step_d2h_gb_s
    FROM groups g JOIN runs r ON list_contains(g.run_ids, r.run_id)
    WHERE g.study = $study AND r.status = 'ok'
    GROUP BY ALL
)
SELECT strategy, world_size, name, spec_hash, hardware, platform, tokens_per_s, tokens_per_s_low, tokens_per_s_high,
       step_time_s, step_time_s_low, step_time_s_high, tflops_per_gpu, scaling_baseline, scaling_kind,
       scaling_efficiency_pct, scaling_efficiency_pct_low, scaling_efficiency_pct_high,
       live_memory_gib, live_memory_gib_low, live_memory_gib_high, peak_memory_gib, step_h2d_gb_s, step_d2h_gb_s
FROM groups LEFT JOIN copies USING (spec_hash, run_ids)
WHERE study = $study AND repeats > 0
ORDER BY world_size, strategy, name, spec_hash, hardware;
