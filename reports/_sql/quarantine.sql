-- Files that could not be used. The study of a broken file is that of its folder.
SELECT file, problem
FROM quarantine
WHERE contains(file, $study)
ORDER BY file, problem;
