-- The fullest rank of each run (GiB): the bytes of its tensors, what it holds of parameters, gradients and optimizer state, and what was
-- measured as its peak (on a CPU the growth of the process); medians over repeats, of the tensors with the least and the most.
WITH members AS (
    SELECT strategy, world_size, name, spec_hash, hardware, live_memory_gib, live_memory_gib_low, live_memory_gib_high, peak_memory_gib, unnest(run_ids) AS run_id
    FROM groups
    WHERE study = $study
), fullest AS (
    SELECT run_id, arg_max(param_gib, coalesce(live_memory_gib, peak_memory_gib)) AS param_gib,
           arg_max(grad_gib, coalesce(live_memory_gib, peak_memory_gib)) AS grad_gib, arg_max(optimizer_gib, coalesce(live_memory_gib, peak_memory_gib)) AS optimizer_gib,
           any_value(memory_source ORDER BY rank) AS memory_source
    FROM ranks
    GROUP BY run_id
)
SELECT m.strategy, m.world_size, m.name, m.spec_hash, m.hardware, count(*) AS repeats,
       any_value(m.live_memory_gib) AS live_memory_gib, any_value(m.live_memory_gib_low) AS least_gib, any_value(m.live_memory_gib_high) AS most_gib,
       any_value(m.peak_memory_gib) AS peak_memory_gib,
       median(f.param_gib) AS param_gib, median(f.grad_gib) AS grad_gib, median(f.optimizer_gib) AS optimizer_gib,
       median(f.param_gib + f.grad_gib + f.optimizer_gib) AS model_state_gib, any_value(f.memory_source) AS memory_source, min(run_id) AS run_id
FROM members m JOIN runs r USING (run_id) JOIN fullest f USING (run_id)
WHERE r.status = 'ok'
GROUP BY m.strategy, m.world_size, m.name, m.spec_hash, m.hardware
ORDER BY m.world_size, live_memory_gib NULLS LAST, m.strategy, m.name, m.spec_hash, m.hardware;
