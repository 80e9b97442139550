-- Throughput over the baseline's (speed-up), and per rank in % (efficiency), with 95 % intervals of the ratio.
-- `ideal` is how many times more hardware was used: ranks, or 1 where all ranks share the baseline's cores.
WITH base AS (
    SELECT DISTINCT comparison_group
    FROM groups
    WHERE study = $study AND speedup = 1 AND speedup_low IS NULL
), placed AS (
    SELECT g.*, coalesce(g.platform = 'cpu' AND b.comparison_group IS NOT NULL, false) AS equal_cores
    FROM groups g LEFT JOIN base b USING (comparison_group)
    WHERE g.study = $study
)
SELECT strategy, world_size, name, spec_hash, hardware, status, scaling_baseline, scaling_kind, equal_cores,
       CASE WHEN ideal IS NOT NULL AND equal_cores THEN 1 ELSE ideal END AS ideal,
       speedup, speedup_low, speedup_high,
       scaling_efficiency_pct, scaling_efficiency_pct_low, scaling_efficiency_pct_high
FROM placed
ORDER BY world_size, speedup DESC NULLS LAST, strategy, name, spec_hash, hardware;
