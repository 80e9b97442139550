-- Throughput over the baseline's (speed-up), and per rank in % (efficiency), with 95 % intervals of the ratio.
-- `ideal` is how many times more hardware was used: ranks, or 1 where all ranks share as many cores as the baseline had.
SELECT strategy, world_size, name, spec_hash, hardware, status, scaling_baseline, scaling_kind,
       coalesce(scaling_kind = 'equal cores', false) AS equal_cores, ideal,
       speedup, speedup_low, speedup_high,
       scaling_efficiency_pct, scaling_efficiency_pct_low, scaling_efficiency_pct_high
FROM groups
WHERE study = $study
ORDER BY world_size, speedup DESC NULLS LAST, strategy, name, spec_hash, hardware;
