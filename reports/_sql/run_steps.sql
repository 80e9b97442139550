-- Every step of one run, of every rank.
SELECT rank, step, time_s, is_warmup
FROM steps
WHERE run_id = $run_id
ORDER BY rank, step;
