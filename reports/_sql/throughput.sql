-- Tokens per second of each set of repeats, with the 95 % interval over repeats, and beside it the theoretical
-- bound of its devices: the ceiling of the model's arithmetic, the median over the repeats.
WITH bounds AS (
    SELECT g.spec_hash, g.run_ids, median(r.ceiling_tokens_per_s) AS ceiling_tokens_per_s
    FROM groups g JOIN runs r ON list_contains(g.run_ids, r.run_id)
    WHERE g.study = $study AND r.status = 'ok'
    GROUP BY ALL
)
SELECT strategy, world_size, name, spec_hash, hardware, status, repeats, failed,
       tokens_per_s, tokens_per_s_low, tokens_per_s_high, ceiling_tokens_per_s, tokens_per_s_per_gpu, tflops_per_gpu, mfu_pct,
       usd_per_1m_tokens, usd_per_1m_tokens_low, usd_per_1m_tokens_high, data_wait_pct, tokens_per_s_without_data_wait
FROM groups LEFT JOIN bounds USING (spec_hash, run_ids)
WHERE study = $study
ORDER BY world_size, tokens_per_s DESC NULLS LAST, strategy, name, spec_hash, hardware;
