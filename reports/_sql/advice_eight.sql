-- The eight published rows of the first ancestor in two readings. Printed: rate, step, and what its formulas make of them.
-- Corrected: the tokens that were timed are those of one micro step, so an optimizer step takes grad_accum times as long; the
-- efficiency is against the run on the fewest GPUs that was made; an hour has 3,600 seconds. price: USD per GPU and hour.
WITH rows AS (
    SELECT *, min(world_size) OVER (PARTITION BY strategy) AS fewest,
           first(tokens_per_s) OVER (PARTITION BY strategy ORDER BY world_size) AS rate_on_fewest,
           CAST($price AS DOUBLE) AS price
    FROM published
    WHERE source_id = $source
)
SELECT strategy, world_size, params_b, micro_batch, grad_accum, tokens_per_s, step_time_s, peak_memory_gib,
       100 * tokens_per_s / (world_size * rate_on_fewest) AS printed_efficiency_pct,
       tokens_per_s / (world_size * price) AS printed_tokens_per_usd,
       tokens_per_s * step_time_s AS timed_tokens, micro_batch * seq_len * world_size AS micro_step_tokens, global_tokens,
       grad_accum * step_time_s AS whole_step_s,
       100 * tokens_per_s * fewest / (world_size * rate_on_fewest) AS efficiency_pct,
       3600 * tokens_per_s / (world_size * price) AS tokens_per_usd
FROM rows
ORDER BY strategy, world_size;
