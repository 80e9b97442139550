"""Builds rendered recipes in NeMo's own environment without running them: `nemo_recipes.py FILE…` prints one line a file."""

import json
import runpy
import sys

for path in sys.argv[1:]:
    recipe = runpy.run_path(path, run_name="recipe")[
        "recipe"
    ]  # an attribute that NeMo does not have is an error of its configuration
    strategy = recipe.trainer.strategy
    print(
        json.dumps(
            {
                "file": path,
                "tp": strategy.tensor_model_parallel_size,
                "pp": strategy.pipeline_model_parallel_size,
                "steps": recipe.trainer.max_steps,
                "sequences": recipe.data.global_batch_size,
                "seq_len": recipe.data.seq_length,
            }
        ),
        flush=True,
    )
