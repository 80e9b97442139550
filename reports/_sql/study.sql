-- What the runs of the study share; a cell that differs among them lists its values.
SELECT count(*) AS runs, count(*) FILTER (r.status = 'ok') AS ok,
       string_agg(DISTINCT r.model, ', ' ORDER BY r.model) AS model, max(r.params_b) AS params_b,
       string_agg(DISTINCT r.hardware, ', ' ORDER BY r.hardware) AS hardware,
       string_agg(DISTINCT r.platform, ', ' ORDER BY r.platform) AS platform,
       string_agg(DISTINCT r.framework, ', ' ORDER BY r.framework) AS framework,
       string_agg(DISTINCT d.env ->> '$.versions.torch', ', ' ORDER BY d.env ->> '$.versions.torch') AS torch,
       string_agg(DISTINCT d.env ->> '$.versions.deepspeed', ', ' ORDER BY d.env ->> '$.versions.deepspeed') AS deepspeed,
       string_agg(DISTINCT d.env ->> '$.cpu.logical_cores', ', ' ORDER BY d.env ->> '$.cpu.logical_cores') AS cpu_cores,
       string_agg(DISTINCT r.precision, ', ' ORDER BY r.precision) AS precision,
       string_agg(DISTINCT CAST(r.seq_len AS VARCHAR), ', ' ORDER BY CAST(r.seq_len AS VARCHAR)) AS seq_len,
       string_agg(DISTINCT CAST(r.global_tokens AS VARCHAR), ', ' ORDER BY CAST(r.global_tokens AS VARCHAR)) AS global_tokens,
       string_agg(DISTINCT r.micro_batch || ' × ' || r.grad_accum, ', ' ORDER BY r.micro_batch || ' × ' || r.grad_accum) AS batch,
       string_agg(DISTINCT d.spec ->> '$.optimizer.name', ', ' ORDER BY d.spec ->> '$.optimizer.name') AS optimizer,
       max(r.steps) AS steps, max(CAST(d.spec ->> '$.warmup_steps' AS BIGINT)) AS warmup_steps,
       min(r.started_at) AS first_started, max(r.started_at) AS last_started,
       string_agg(DISTINCT r.git_commit[:12], ', ' ORDER BY r.git_commit[:12]) AS git_commits
FROM runs r JOIN details d USING (run_id)
WHERE r.study = $study
ORDER BY runs;
