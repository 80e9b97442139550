-- What is left of the rate per GPU on more GPUs: two published rows of one source that differ in nothing but the number of GPUs
-- (and the degree of data parallelism), by how many times as many.
WITH rows AS (
    SELECT publisher, source_id, model, accelerator, framework, framework_version, seq_len, precision, strategy, zero_stage,
           tp, pp, cp, ep, vpp, micro_batch, recompute, attention, task, world_size, max(tokens_per_s_per_gpu) AS rate
    FROM published
    WHERE counts_for_time AND tokens_per_s_per_gpu > 0
    GROUP BY ALL
), pairs AS (
    SELECT a.publisher, b.world_size / a.world_size AS times, 100 * b.rate / a.rate AS efficiency_pct
    FROM rows a JOIN rows b ON a.world_size < b.world_size
        AND (a.source_id, a.model, a.accelerator, a.framework, a.precision, a.seq_len, a.micro_batch, a.strategy, a.zero_stage, a.tp,
             a.pp, a.cp, a.ep, a.vpp, a.recompute, a.attention, a.task, a.framework_version)
        IS NOT DISTINCT FROM (b.source_id, b.model, b.accelerator, b.framework, b.precision, b.seq_len, b.micro_batch, b.strategy,
             b.zero_stage, b.tp, b.pp, b.cp, b.ep, b.vpp, b.recompute, b.attention, b.task, b.framework_version)
), grouped AS (
    SELECT *, CASE WHEN times <= 2 THEN 'up to 2' WHEN times <= 4 THEN 'up to 4' WHEN times <= 8 THEN 'up to 8'
                   WHEN times <= 16 THEN 'up to 16' ELSE 'above 16' END AS growth
    FROM pairs
)
SELECT growth, count(*) AS pairs, count(DISTINCT publisher) AS publishers, quantile_cont(efficiency_pct, 0.1) AS efficiency_pct_low,
       median(efficiency_pct) AS efficiency_pct, quantile_cont(efficiency_pct, 0.9) AS efficiency_pct_high
FROM grouped
GROUP BY growth
ORDER BY min(times);
