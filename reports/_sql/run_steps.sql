-- The steps of one run, of every rank; of long runs at most 4,000 rows, evenly spaced.
WITH numbered AS (
    SELECT rank, step, time_s, is_warmup, row_number() OVER (PARTITION BY rank ORDER BY step) AS n, count(*) OVER () AS total
    FROM steps
    WHERE run_id = $run_id
)
SELECT rank, step, time_s, is_warmup
FROM numbered
WHERE (n - 1) % greatest(1, CAST(ceil(total / 4000.0) AS BIGINT)) = 0
ORDER BY rank, step;
