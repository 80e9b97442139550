-- Every split of every model that was run: how often, how it ended, and the ids of its five newest runs.
WITH asked AS (
    SELECT r.*, CAST(d.spec->>'$.strategy.dp_replicate' AS BIGINT) AS dp_replicate
    FROM runs r JOIN details d USING (run_id)
)
SELECT model, strategy, dp, tp, pp, cp, ep, dp_replicate, world_size,
       count(*) AS runs, count(*) FILTER (status = 'ok') AS ok,
       string_agg(DISTINCT status, ', ' ORDER BY status) FILTER (status <> 'ok') AS other,
       (list(run_id ORDER BY started_at DESC NULLS LAST, run_id))[:5] AS newest
FROM asked
GROUP BY model, strategy, dp, tp, pp, cp, ep, dp_replicate, world_size
ORDER BY model NULLS LAST, world_size, strategy, dp, tp, pp, cp, ep, dp_replicate;
