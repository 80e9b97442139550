-- Every strategy beside plain replicas (ddp) in the runs of this site: sets of one study that are comparable, on the same hardware and
-- number of ranks, with the same micro batch. Ratios of throughput and of the memory of tensors; the median over pairs, least and most.
WITH pairs AS (
    SELECT o.study, o.strategy, o.world_size, o.tokens_per_s / d.tokens_per_s AS rate, o.live_memory_gib / d.live_memory_gib AS memory
    FROM groups o JOIN groups d
        ON (o.study, o.comparison_group, o.world_size, o.framework, o.precision, o.micro_batch, o.hardware, o.model)
        IS NOT DISTINCT FROM (d.study, d.comparison_group, d.world_size, d.framework, d.precision, d.micro_batch, d.hardware, d.model)
    WHERE d.strategy = 'ddp' AND o.strategy <> 'ddp' AND o.fairness = 'yes' AND d.fairness = 'yes'
        AND o.tokens_per_s > 0 AND d.tokens_per_s > 0
)
SELECT strategy, count(*) AS pairs, count(DISTINCT study) AS studies, min(world_size) AS ranks_least, max(world_size) AS ranks_most,
       median(rate) AS rate, min(rate) AS rate_low, max(rate) AS rate_high,
       median(memory) AS memory, min(memory) AS memory_low, max(memory) AS memory_high
FROM pairs
GROUP BY strategy
ORDER BY rate DESC, strategy;
