-- Median step time of each set of repeats in seconds, with its 95 % interval.
SELECT strategy, world_size, name, spec_hash, hardware, repeats, step_time_s, step_time_s_low, step_time_s_high
FROM groups
WHERE study = $study AND step_time_s IS NOT NULL
ORDER BY world_size, step_time_s, strategy, name, spec_hash, hardware;
