"""Checkpoints written and read by megatron-core itself, its GPT on CPU ranks: `megatron_checkpoint.py VERB ...`.

new FOLDER...: a random model of FOLDER/model.json in each format, and its logits
split TP PP FOLDER...: FOLDER/torch_dist as classic files of TP x PP ranks
join TP PP FOLDER...: the classic files FOLDER/to-split of TP x PP ranks as torch_dist
logits CHECKPOINT...: the logits of checkpoints, as CHECKPOINT.logits.pt
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
from pathlib import Path

import cuda_on_cpu

redirect = cuda_on_cpu.install()

import numpy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.transformer.enums import AttnBackend  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

OFF = (
    "bias_activation_fusion",
    "masked_softmax_fusion",
    "bias_dropout_fusion",
    "gradient_accumulation_fusion",
    "persist_layer_norm",
    "apply_rope_fusion",
)


def join_group(tp: int = 1, pp: int = 1) -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        meet = tempfile.NamedTemporaryFile(delete=False).name
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    parallel_state.initialize_model_parallel(tp, pp, create_gloo_process_groups=True)
    cuda_on_cpu.without_random_state()


def model_of(a: argparse.Namespace, tp: int = 1, pp: int = 1) -> GPTModel:
    config = TransformerConfig(
        num_layers=a.num_layers,
        hidden_size=a.hidden_size,
        num_attention_heads=a.num_attention_heads,
        num_query_groups=a.num_query_groups,
        ffn_hidden_size=a.ffn_hidden_size,
        layernorm_epsilon=a.norm_epsilon,
        normalization="RMSNorm",
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=a.add_qkv_bias,
        window_size=a.window_size,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        attention_softmax_in_fp32=True,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        **dict.fromkeys(OFF, False),
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=a.padded_vocab_size,
        max_sequence_length=a.max_position_embeddings,
        position_embedding_type="rope",
        rotary_base=a.rotary_base,
        rope_scaling=a.use_rope_scaling,
        rope_scaling_factor=a.rope_scaling_factor,
        share_embeddings_and_output_weights=not a.untie_embeddings_and_output_weights,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )


def read_args(path: Path) -> argparse.Namespace:
    a = argparse.Namespace(**json.loads(path.read_text()))
    a.window_size = tuple(a.window_size) if a.window_size else None
    a.attention_backend, a.params_dtype = AttnBackend.auto, torch.float32  # as Megatron-LM has them
    return a


def logits_of(model: GPTModel, a: argparse.Namespace) -> torch.Tensor:
    tokens = torch.tensor(a.tokens)
    length = tokens.shape[1]
    hidden = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
    with torch.no_grad():
        return model.eval()(tokens, torch.arange(length)[None].expand(len(tokens), -1), hidden)


def save_torch_dist(
    model: GPTModel, a: argparse.Namespace, folder: Path, metadata: dict | None = None
) -> None:
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    told = {"args": a, "checkpoint_version": 3.0, "iteration": 7}
    state = told | {"model": model.sharded_state_dict(metadata=metadata)}
    dist_checkpointing.save(state, str(folder))


def save_classic(model: GPTModel, a: argparse.Namespace, folder: Path, tp: int, pp: int) -> None:
    ranks = [parallel_state.get_tensor_model_parallel_rank()]
    ranks += [parallel_state.get_pipeline_model_parallel_rank()]
    place = f"mp_rank_{ranks[0]:02d}" + (f"_{ranks[1]:03d}" if pp > 1 else "")
    at = folder / "iter_0000007" / place / "model_optim_rng.pt"
    at.parent.mkdir(parents=True)
    told = {"args": a, "checkpoint_version": 3.0, "iteration": 7}
    random_states = (random.getstate(), numpy.random.get_state(), torch.get_rng_state())
    told["rng_state"] = [random_states]  # as Megatron-LM: none of it is needed
    torch.save(told | {"model": model.state_dict_for_save_checkpoint()}, at)
    if dist.get_rank() == 0:
        (folder / "latest_checkpointed_iteration.txt").write_text("7")


def load_torch_dist(model: GPTModel, folder: Path) -> None:
    model.load_state_dict(
        dist_checkpointing.load({"model": model.sharded_state_dict()}, str(folder))["model"]
    )


def load_classic(model: GPTModel, folder: Path, pp: int) -> argparse.Namespace:
    ranks = parallel_state.get_tensor_model_parallel_rank()
    stage = parallel_state.get_pipeline_model_parallel_rank()
    place = f"mp_rank_{ranks:02d}" + (f"_{stage:03d}" if pp > 1 else "")
    step = int((folder / "latest_checkpointed_iteration.txt").read_text())
    told = torch.load(
        folder / f"iter_{step:07d}" / place / "model_optim_rng.pt", weights_only=False
    )
    left = model.load_state_dict(told["model"], strict=False)
    assert not left.unexpected_keys, left
    assert all(name.endswith("_extra_state") for name in left.missing_keys), left
    return told["args"]


def new(*folders: Path) -> None:
    join_group()
    for folder in folders:
        a = read_args(folder / "model.json")
        torch.manual_seed(1)
        model = model_of(a)
        with torch.no_grad():
            for parameter in model.parameters():  # nothing is left at one or zero
                parameter.add_(torch.randn_like(parameter) * 0.1)
        torch.save(logits_of(model, a), folder / "logits.pt")
        save_torch_dist(model, a, folder / "torch_dist/iter_0000007")
        (folder / "torch_dist/latest_checkpointed_iteration.txt").write_text("7")
        save_torch_dist(model, a, folder / "apart", {"singleton_local_shards": True})
        save_classic(model, a, folder / "classic", 1, 1)


def split(tp: str, pp: str, *folders: Path) -> None:
    join_group(int(tp), int(pp))
    for folder in folders:
        a = read_args(folder / "model.json")
        a.tensor_model_parallel_size, a.pipeline_model_parallel_size = int(tp), int(pp)
        model = model_of(a, int(tp), int(pp))
        load_torch_dist(model, folder / "torch_dist/iter_0000007")
        save_classic(model, a, folder / "split", int(tp), int(pp))


def join(tp: str, pp: str, *folders: Path) -> None:
    join_group(int(tp), int(pp))
    for folder in folders:
        a = read_args(folder / "model.json")
        model = model_of(a, int(tp), int(pp))
        load_classic(model, folder / "to-split", int(pp))
        save_torch_dist(model, a, folder / "joined")


def logits(*checkpoints: Path) -> None:
    join_group()
    for checkpoint in checkpoints:
        a = read_args(checkpoint.parent / "model.json")
        model, files = model_of(a), next(checkpoint.glob("**/metadata.json"), None)
        if files:
            load_torch_dist(model, files.parent)
        else:
            load_classic(model, checkpoint, 1)
        torch.save(logits_of(model, a), checkpoint.with_name(f"{checkpoint.name}.logits.pt"))


if __name__ == "__main__":
    verb, *given = sys.argv[1:]
    verbs = {"new": new, "split": split, "join": join, "logits": logits}
    verbs[verb](*(g if g.isdigit() else Path(g) for g in given))
    dist.barrier()
    for left in multiprocessing.active_children():  # its writers would keep our output open
        left.terminate()
    sys.stdout.flush()
    os._exit(0)
