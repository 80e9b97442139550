-- The verdict of every finished run against its study's reference.
SELECT fairness, count(*) AS runs
FROM runs
WHERE study = $study AND status = 'ok'
GROUP BY fairness
ORDER BY fairness;
