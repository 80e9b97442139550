-- Files that could not be used. A broken file does not say which study it belongs to: its folder does.
SELECT file, problem
FROM quarantine
WHERE contains(file, $study)
ORDER BY file, problem;
