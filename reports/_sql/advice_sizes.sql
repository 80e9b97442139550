-- Published training that counts for time, by the sizes of model that the first ancestor's advice distinguishes (10⁹ parameters):
-- how many rows split the layers or the model itself, keep all of it on each GPU, share it in some degree, or state an offload.
WITH sizes(size, least, most) AS (
    VALUES ('below 1', 0, 1), ('1 to 10', 1, 10), ('10 to 30', 10, 30), ('30 to 70', 30, 70), ('70 and more', 70, 1e9)
)
SELECT size, count(row_id) AS rows, count(DISTINCT publisher) AS publishers,
       count(row_id) FILTER (source_id = $source) AS own_rows,
       count(row_id) FILTER (strategy = 'ddp') AS replicated,
       count(row_id) FILTER (zero_stage = 1) AS zero1,
       count(row_id) FILTER (zero_stage = 2) AS zero2,
       count(row_id) FILTER (zero_stage = 3 OR strategy LIKE 'fsdp%') AS all_sharded,
       count(row_id) FILTER (coalesce(tp, 1) * coalesce(pp, 1) * coalesce(ep, 1) * coalesce(cp, 1) > 1) AS split,
       count(row_id) FILTER (coalesce(cpu_offload, 'none') <> 'none') AS offloaded
FROM sizes LEFT JOIN published ON (counts_for_time OR source_id = $source) AND params_b >= least AND params_b < most
GROUP BY size, least
ORDER BY least;
