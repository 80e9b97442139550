"""Builds rendered recipes in NeMo's own environment without running them: `nemo_recipes.py FILE…` prints one line a file."""

import json
import runpy
import sys

import fiddle
import torch
from nemo.collections import llm  # noqa: F401  before torch is made to say that GPUs are here

torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 8

for path in sys.argv[1:]:
    recipe = runpy.run_path(path, run_name="recipe")[
        "recipe"
    ]  # an attribute that NeMo does not have is an error of its configuration
    if hasattr(recipe.model.config, "apply_rope_fusion"):
        # the only field that cannot be built without Transformer Engine
        recipe.model.config.apply_rope_fusion = False
    parts = (recipe.model, recipe.trainer, recipe.optim)
    model, trainer, optimizer = (fiddle.build(part) for part in parts)
    shape, strategy = model.config, trainer.strategy
    told = {
        "file": path,
        "tp": strategy.tensor_model_parallel_size,
        "pp": strategy.pipeline_model_parallel_size,
        "steps": trainer.max_steps,
        "devices": trainer.num_devices,
        "sequences": recipe.data.global_batch_size,
        "seq_len": shape.seq_length,
        "shape": [shape.num_layers, shape.hidden_size, shape.num_attention_heads],
        "kv_heads": shape.num_query_groups,
        "lr": optimizer.config.lr,
        "distributed": optimizer.config.use_distributed_optimizer,
        "plugin": type(trainer.strategy.precision_plugin).__name__,
    }
    print(json.dumps(told), flush=True)
