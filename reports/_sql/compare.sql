-- Every set of repeats with the figures that two sets are compared by, and what identifies it.
SELECT strategy, world_size, name, spec_hash, hardware, platform, model, framework, precision, seq_len, global_tokens, micro_batch,
       status, repeats, failed, fairness,
       tokens_per_s, tokens_per_s_low, tokens_per_s_high, tokens_per_s_per_gpu, mfu_pct,
       step_time_s, step_time_s_low, step_time_s_high,
       live_memory_gib, live_memory_gib_low, live_memory_gib_high,
       scaling_efficiency_pct, scaling_efficiency_pct_low, scaling_efficiency_pct_high,
       usd_per_1m_tokens, usd_per_1m_tokens_low, usd_per_1m_tokens_high, mean_loss
FROM groups
WHERE study = $study
ORDER BY world_size, tokens_per_s DESC NULLS LAST, strategy, name, spec_hash, hardware;
