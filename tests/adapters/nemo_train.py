"""A tiny GPT trained by NeMo 2 on CPU ranks, its GPU calls redirected: `nemo_train.py FOLDER RANKS` prints the losses."""

import contextlib
import json
import os
import sys

import cuda_on_cpu

redirect = cuda_on_cpu.install()

import torch  # noqa: E402
from lightning.pytorch.callbacks import Callback  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from megatron.core.tensor_parallel import random  # noqa: E402
from nemo import lightning as nl  # noqa: E402
from nemo.collections import llm  # noqa: E402
from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer  # noqa: E402

SEQ_LEN = 64
random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
OFF = (
    "bias_activation_fusion",
    "masked_softmax_fusion",
    "bias_dropout_fusion",
    "gradient_accumulation_fusion",
    "persist_layer_norm",
    "apply_rope_fusion",
)


class Losses(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, *told):
        loss = trainer.callback_metrics.get("reduced_train_loss")
        self.seen.append(None if loss is None else float(loss))


def batch_of(batches):
    found = next(batches)
    batch = found[0] if isinstance(found, tuple) else found
    batch["attention_mask"] = torch.ones(1, 1, SEQ_LEN, SEQ_LEN, dtype=torch.bool).triu(1)
    return batch


def main(folder: str, ranks: int) -> None:
    data = llm.MockDataModule(
        tokenizer=NullTokenizer(vocab_size=511),
        seq_length=SEQ_LEN,
        micro_batch_size=2,
        global_batch_size=8,
        num_train_samples=64,
        num_val_samples=8,
        num_test_samples=8,
        num_workers=0,
        pin_memory=False,
    )
    config = llm.GPTConfig(
        num_layers=2,
        hidden_size=64,
        ffn_hidden_size=128,
        num_attention_heads=4,
        seq_length=SEQ_LEN,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        **dict.fromkeys(OFF, False),
    )
    config.transformer_layer_spec, config.data_step_fn = get_gpt_layer_local_spec(), batch_of
    losses, strategy = (
        Losses(),
        nl.MegatronStrategy(process_group_backend="gloo", ckpt_async_save=False),
    )
    trainer = nl.Trainer(
        accelerator="cpu",
        devices=ranks,
        max_steps=4,
        strategy=strategy,
        log_every_n_steps=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[losses],
    )
    optimizer = nl.MegatronOptimizerModule(
        config=OptimizerConfig(optimizer="adam", lr=1e-2, use_distributed_optimizer=False)
    )
    llm.train(
        model=llm.GPTModel(config, tokenizer=data.tokenizer),
        data=data,
        trainer=trainer,
        optim=optimizer,
        log=nl.NeMoLogger(log_dir=folder, ckpt=None),
    )
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0:
        sys.stdout.write(f"\n{json.dumps({'losses': losses.seen})}\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
