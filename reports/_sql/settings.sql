-- Each set of settings: throughput with its 95 % interval, the theoretical bound of its devices, the tensors of the fullest rank with
-- the least and the most over repeats, the most steps that a repeat skipped; the precision whose tolerance its loss is held to, which gradients
-- exchanged in bfloat16 make a coarser one.
WITH bounds AS (
    SELECT g.spec_hash, g.run_ids, median(r.ceiling_tokens_per_s) AS ceiling_tokens_per_s,
           max(d.skipped_steps) AS skipped_steps, bool_or((d.spec ->> '$.strategy.compression') = 'bf16') AS exchanges_bf16
    FROM groups g JOIN runs r ON list_contains(g.run_ids, r.run_id) JOIN details d USING (run_id)
    WHERE g.study = $study AND r.status = 'ok'
    GROUP BY ALL
)
SELECT strategy, world_size, name, spec_hash, hardware, status, repeats, failed, fairness, precision,
       if(precision = 'fp32' AND exchanges_bf16, 'bf16', precision) AS held_to, model, global_tokens, seq_len,
       tokens_per_s, tokens_per_s_low, tokens_per_s_high, ceiling_tokens_per_s, mfu_pct, live_memory_gib, live_memory_gib_low, live_memory_gib_high,
       skipped_steps, loss_last
FROM groups LEFT JOIN bounds USING (spec_hash, run_ids)
WHERE study = $study
ORDER BY tokens_per_s DESC NULLS LAST, strategy, name, spec_hash, hardware;
