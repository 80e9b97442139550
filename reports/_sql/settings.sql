-- What each set of settings reached: throughput with its 95 % interval, the most that its devices could do, peak memory.
WITH bounds AS (
    SELECT g.spec_hash, g.run_ids, median(r.ceiling_tokens_per_s) AS ceiling_tokens_per_s
    FROM groups g JOIN runs r ON list_contains(g.run_ids, r.run_id)
    WHERE g.study = $study AND r.status = 'ok'
    GROUP BY ALL
)
SELECT strategy, world_size, name, spec_hash, hardware, status, repeats, failed, fairness, precision, model, global_batch_tokens, seq_len,
       tokens_per_s, tokens_per_s_low, tokens_per_s_high, ceiling_tokens_per_s, mfu_pct, peak_memory_gib, loss_last
FROM groups LEFT JOIN bounds USING (spec_hash, run_ids)
WHERE study = $study
ORDER BY tokens_per_s DESC NULLS LAST, strategy, name, spec_hash, hardware;
