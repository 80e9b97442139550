-- Throughput over the baseline's (speed-up), and per rank in % (efficiency), with 95 % intervals of the ratio.
-- `ideal` is how many times more hardware was used: ranks, or 1 where all ranks share as many cores as the baseline had.
-- Imported logs (no request) scale only along a line of sets whose log tells that they differ in the number of ranks alone:
-- one set per number of ranks, the baseline among them.
WITH sets AS (
    SELECT *, spec_hash IS NOT NULL AS requested,
           count(*) OVER line AS members, count(DISTINCT world_size) OVER line AS sizes,
           count(*) FILTER (scaling_kind = 'baseline' AND speedup = 1) OVER line AS baselines
    FROM groups
    WHERE study = $study
    WINDOW line AS (PARTITION BY spec_hash IS NULL, scaling_baseline, strategy, model, seq_len, micro_batch, precision,
                                 framework, hardware)
)
SELECT strategy, world_size, name, spec_hash, hardware, status, scaling_baseline, scaling_kind,
       coalesce(scaling_kind = 'equal cores', false) AS equal_cores, ideal,
       speedup, speedup_low, speedup_high,
       scaling_efficiency_pct, scaling_efficiency_pct_low, scaling_efficiency_pct_high
FROM sets
WHERE requested OR (sizes > 1 AND sizes = members AND baselines = 1
    AND strategy || model || precision || framework || hardware || seq_len || micro_batch IS NOT NULL)
ORDER BY world_size, speedup DESC NULLS LAST, strategy, name, spec_hash, hardware;
