-- Every run of the study, in the order in which they started.
SELECT run_id, r.strategy, r.world_size, d.name, d.spec_hash, r.hardware, d.attempt, r.status, r.reason, r.started_at, r.steps,
       r.step_time_s, r.tokens_per_s, r.live_memory_gib, r.peak_memory_gib, r.loss_first, r.mean_loss, r.loss_last,
       r.unsteady_from_step
FROM runs r JOIN details d USING (run_id)
WHERE r.study = $study
ORDER BY r.started_at NULLS LAST, run_id;
