"""A request trained by megatron-core's GPT, DDP and pipeline schedule on CPU ranks: `megatron_core.py FOLDER` prints the losses of spec.yaml."""

import json
import os
import sys
from pathlib import Path

from llmbench.frameworks.on_cpu.cuda_on_cpu import redirect, without_random_states

redirected = redirect()  # before Megatron is imported

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel import random  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from llmbench.frameworks.on_cpu.megatron_model import (  # noqa: E402
    load_weights,
    megatron_batch,
    megatron_weights,
)
from llmbench.frameworks.parts import Parts, leave  # noqa: E402
from llmbench.train import mesh  # noqa: E402
from llmbench.train.strategies.base import learning_rate  # noqa: E402


def model_of(spec, weights) -> tuple[TransformerConfig, GPTModel]:
    m = spec.model
    config = TransformerConfig(
        num_layers=m.n_layers,
        hidden_size=m.d_model,
        num_attention_heads=m.n_heads,
        num_query_groups=m.n_kv_heads,
        ffn_hidden_size=m.d_ff,
        layernorm_epsilon=m.norm_eps,
        normalization="RMSNorm",
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        attention_softmax_in_fp32=True,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
    )
    layers = get_gpt_layer_local_spec(normalization="RMSNorm")
    model = GPTModel(
        config,
        layers,
        vocab_size=m.vocab_size,
        max_sequence_length=spec.seq_len,
        position_embedding_type="rope",
        rotary_base=int(m.rope_theta),
        share_embeddings_and_output_weights=False,
    )
    load_weights(model, megatron_weights(weights, m), gated=True, tp=1, tp_rank=0)
    return config, model


def main(folder: Path) -> None:
    parts = Parts(folder)
    spec, o = parts.spec, parts.spec.optimizer
    for name, alone in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, alone)
    mesh.join(collective_timeout_s=60, hardware="cpu")
    if not dist.is_initialized():  # one process has no group of ours, and Megatron wants one
        dist.init_process_group(
            "gloo", init_method=f"file://{folder.resolve()}/meet", rank=0, world_size=1
        )
    parallel_state.initialize_model_parallel(create_gloo_process_groups=True)
    without_random_states(random)
    config, plain = model_of(spec, parts.model.state_dict())
    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=False
        ),
        plain,
    )
    settings = OptimizerConfig(
        optimizer="adam",
        lr=o.lr,
        weight_decay=0.0,
        adam_beta1=o.betas[0],
        adam_beta2=o.betas[1],
        adam_eps=o.eps,
        clip_grad=o.clip_norm or 0.0,
    )
    optimizer = get_megatron_optimizer(settings, [model])

    def forward(batches, run):
        batch = megatron_batch(next(batches))
        place = (batch["position_ids"], batch["attention_mask"])
        losses = run(batch["tokens"], *place, labels=batch["labels"])
        return losses, lambda given: (given.float().mean(), {"loss": given.detach().float().mean()})

    batches, told = iter(parts.loader(dp_rank=dist.get_rank())), []
    for step in range(spec.steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, o)
        found = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=batches,
            model=model,
            num_microbatches=spec.batch.accum,
            seq_length=spec.seq_len,
            micro_batch_size=spec.batch.micro,
            forward_only=False,
        )
        finalize_model_grads([model])
        optimizer.step()
        loss = torch.stack([f["loss"] for f in found]).mean()
        dist.all_reduce(loss)
        told.append(loss.item() / dist.get_world_size())
    if dist.get_rank() == 0:
        print(json.dumps({"losses": told}), flush=True)
    leave(parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
