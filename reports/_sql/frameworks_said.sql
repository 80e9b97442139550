-- Settings of a request that a framework could not honour, from its run files, with the names of these frameworks.
WITH members AS (
    SELECT framework, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), events AS (
    SELECT m.framework, m.run_id, unnest(CAST(d.events AS JSON[])) AS event
    FROM members m JOIN details d USING (run_id)
), said AS (
    SELECT DISTINCT framework, event ->> '$.text' AS text
    FROM events
    WHERE event ->> '$.kind' = 'not_honoured' AND framework IS NOT NULL
)
SELECT text, string_agg(framework, ', ' ORDER BY framework) AS frameworks, count(*) AS number
FROM said
GROUP BY text
ORDER BY number DESC, text;
