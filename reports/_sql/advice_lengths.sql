-- The longest sequences that were published as trained, by accelerator, and the largest micro batches.
SELECT accelerator, count(*) AS rows, count(DISTINCT publisher) AS publishers, max(seq_len) AS longest,
       list(seq_len) AS lengths, max(micro_batch) AS largest_micro_batch, list(micro_batch) AS micro_batches
FROM published
WHERE counts_for_time AND accelerator IS NOT NULL AND seq_len IS NOT NULL
GROUP BY accelerator
ORDER BY accelerator;
