-- Tokens per second of each set of repeats, with the 95 % interval over steps and repeats.
SELECT strategy, world_size, name, spec_hash, status, repeats, failed,
       tokens_per_s, tokens_per_s_low, tokens_per_s_high, tokens_per_s_per_gpu, tflops_per_gpu, mfu_pct, usd_per_1m_tokens
FROM groups
WHERE study = $study
ORDER BY world_size, tokens_per_s DESC NULLS LAST, strategy, name, spec_hash;
