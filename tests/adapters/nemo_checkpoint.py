"""A tiny Llama saved by NeMo 2 on one CPU rank, with its context and its logits: `nemo_checkpoint.py FOLDER NAME [RESTORE]`.

The weights are random, or those of the checkpoint RESTORE; the learning rate is 0, so that training leaves them.
"""

import json
import os
import sys
from pathlib import Path

import nemo_train  # redirects what says cuda
import torch
from lightning.pytorch.callbacks import Callback
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig
from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer
from nemo.lightning.io import pl as nemo_io
from nemo.lightning.io.pl import TrainerContext

nemo_io._fix_tensors_device = lambda checkpoint: checkpoint  # it insists on a CUDA device


class Save(Callback):
    def __init__(self, folder: Path, name: str, restored: bool):
        self.folder, self.name, self.restored = folder, name, restored

    def on_train_start(self, trainer, model):
        if not self.restored:
            torch.manual_seed(1)
            with torch.no_grad():
                for parameter in trainer.strategy.megatron_parallel.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)

    def on_train_end(self, trainer, model):
        inner = trainer.strategy.megatron_parallel[0]
        while hasattr(inner, "module"):
            inner = inner.module
        tokens = torch.tensor(json.loads((self.folder / "tokens.json").read_text()))
        length = tokens.shape[1]
        hidden = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
        with torch.no_grad():
            found = inner.eval()(tokens, torch.arange(length)[None].expand(len(tokens), -1), hidden)
        torch.save(found.float(), self.folder / f"{self.name}.logits.pt")
        trainer.save_checkpoint(self.folder / self.name)
        TrainerContext.from_trainer(trainer).io_dump(
            self.folder / self.name / "context", yaml_attrs=["model"]
        )


def main(folder: Path, name: str, restore: str | None) -> None:
    data = llm.MockDataModule(
        tokenizer=NullTokenizer(vocab_size=511),
        seq_length=nemo_train.SEQ_LEN,
        micro_batch_size=2,
        global_batch_size=2,
        num_train_samples=8,
        num_val_samples=2,
        num_test_samples=2,
        num_workers=0,
        pin_memory=False,
    )
    config = llm.Llama31Config8B(
        num_layers=2,
        hidden_size=64,
        ffn_hidden_size=128,
        num_attention_heads=4,
        num_query_groups=2,
        vocab_size=512,
        seq_length=nemo_train.SEQ_LEN,
        use_cpu_initialization=True,
        attention_softmax_in_fp32=True,
        **dict.fromkeys(nemo_train.OFF, False),
    )
    config.transformer_layer_spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    config.data_step_fn = nemo_train.batch_of
    strategy = nl.MegatronStrategy(process_group_backend="gloo", ckpt_async_save=False)
    trainer = nl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=1,
        strategy=strategy,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Save(folder, name, bool(restore))],
    )
    restored = nl.RestoreConfig(path=restore, load_artifacts=False) if restore else None
    still = OptimizerConfig(optimizer="adam", lr=0.0, weight_decay=0.0)
    llm.train(
        model=llm.LlamaModel(config),
        data=data,
        trainer=trainer,
        optim=nl.MegatronOptimizerModule(config=still),
        log=nl.NeMoLogger(log_dir=str(folder / "log"), ckpt=None),
        resume=nl.AutoResume(restore_config=restored) if restore else None,
    )
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], (sys.argv[3:] or [None])[0])
