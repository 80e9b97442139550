"""The callback beside real trainers: the losses are those without it, and the run file says what
the framework says.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from notebooks import ROOT

from llmbench.core.numbers import test_near
from llmbench.core.records import read_run, result_files

SCRIPT = """
import json, os, sys, time
import torch
from llmbench.callback import Recorder, lightning_callback, trainer_callback
from llmbench.model.decoder import build_model, next_token_loss
from llmbench.bench.peer_frameworks import WithLoss
from llmbench.spec.presets import ModelShape

driver, accum, results, world = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(os.environ.get("WORLD_SIZE", 1))
STEPS, MICRO, LENGTH = 4, 2, 32
shape = ModelShape(name="small", family="llama", n_layers=2, d_model=32, n_heads=2, n_kv_heads=1, d_ff=64, vocab_size=256,
                   max_seq_len=64, tied_embeddings=False, bias=False, norm_eps=1e-5, rope_theta=1e4)
torch.manual_seed(0)
tokens = torch.randint(0, 256, (STEPS * MICRO * accum * world, LENGTH + 1))

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return len(tokens)

    def __getitem__(self, number):
        time.sleep(float(os.environ["PAUSE_S"]))
        return tokens[number]

model = build_model(shape, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
more = dict(name=driver, warmup_steps=1, seq_len=LENGTH)
losses = []

if driver == "trainer":
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Losses(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **rest):
            losses.extend([logs["loss"]] if "loss" in logs else [])

    arguments = TrainingArguments(
        output_dir=os.environ["SCRATCH"], use_cpu=True, max_steps=STEPS, per_device_train_batch_size=MICRO, gradient_accumulation_steps=accum,
        lr_scheduler_type="constant", learning_rate=1e-2, weight_decay=0.0, train_sampling_strategy="sequential", remove_unused_columns=False,
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, ddp_backend="gloo" if world > 1 else None)
    trainer = Trainer(model=WithLoss(model), args=arguments, train_dataset=Slow(), optimizers=(optimizer, None),
                      data_collator=lambda rows: {"tokens": torch.stack(rows)}, callbacks=[Losses()])
    if results:
        trainer.add_callback(trainer_callback(results, **more))
    trainer.train()
elif driver == "lightning":
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, index):
            loss = next_token_loss(self.model, batch)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return optimizer

    trainer = Trainer(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_steps=STEPS, accumulate_grad_batches=accum,
                      logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)
    if results:
        trainer.callbacks.append(lightning_callback(results, micro=MICRO, **more))
    trainer.fit(Module(), torch.utils.data.DataLoader(Slow(), batch_size=MICRO))
else:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accum)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=MICRO)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    recorder = Recorder(results, model=model, optimizer=optimizer, accelerator=accelerator, micro=MICRO, **more) if results else None
    if recorder:
        recorder.__enter__()
    for batch in loader:
        with recorder.step() if recorder else torch.enable_grad() as done, accelerator.accumulate(model):
            loss = next_token_loss(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            recorder and done(loss)
        losses.append(loss.item())
    if recorder:
        recorder.__exit__(None, None, None)

with open(f"{os.environ['SCRATCH']}/losses-{os.environ.get('RANK', 0)}.json", "w") as file:
    json.dump(losses, file)
sys.stdout.flush(); os._exit(0)
"""

PAUSE_S = 0.01  # of the loader, per sequence
FRAMEWORKS = {"trainer": "transformers", "lightning": "lightning", "accelerate": "accelerate"}


def train(tmp_path, driver, accum, ranks, recorded):
    scratch, script = tmp_path / f"scratch-{recorded}", tmp_path / "script.py"
    scratch.mkdir()
    script.write_text(SCRIPT)
    agent = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        if ranks > 1
        else []
    )
    results = str(tmp_path / "results") if recorded else ""
    env = os.environ | {
        "SCRATCH": str(scratch),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PAUSE_S": str(PAUSE_S),
    }
    done = subprocess.run(
        [sys.executable, *agent, script, driver, str(accum), results],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((scratch / f"losses-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize("driver", FRAMEWORKS)
@pytest.mark.parametrize(("ranks", "accum"), [(1, 1), (2, 2)])
def test_a_recorded_training_is_the_same_training(tmp_path, driver, ranks, accum):
    if importlib.util.find_spec(FRAMEWORKS[driver]) is None:
        pytest.skip(f"{FRAMEWORKS[driver]} is not installed; pip install 'llmbench[bench]'")
    alone, beside = (train(tmp_path, driver, accum, ranks, recorded) for recorded in (False, True))
    assert alone == beside, "not one bit of a loss may change"
    (file,) = result_files(tmp_path / "results")
    run = read_run(file)
    assert (
        run.status == "ok"
        and run.source.format == "callback"
        and run.env.framework == FRAMEWORKS[driver]
    )
    assert (
        len(run.steps.step) == 4
        and all(t > 0 for t in run.steps.time_s)
        and len(run.ranks) == ranks == run.spec.world_size
    )
    assert run.steps.tokens == [2 * 32 * accum * ranks] * 4 and run.spec.batch.accum == accum
    assert (
        run.spec.strategy.name == ("ddp" if ranks > 1 else "single")
        and run.spec.strategy.dp == ranks
    )
    assert (
        all(r.peak_allocated_bytes and r.optimizer_bytes for r in run.ranks)
        and run.env.versions[FRAMEWORKS[driver]]
    )
    if driver == "trainer":  # logs a mean over ranks, not rounded
        test_near(run.steps.loss, alone[0], rel=1e-12)
        assert all(n > 0 for n in run.steps.grad_norm)
    else:
        each = [
            sum(rank[i * accum + m] for rank in alone for m in range(accum)) / (accum * ranks)
            for i in range(4)
        ]
        test_near(run.steps.loss, each, rel=1e-6)
    for rank in run.ranks:  # a loader may be a batch ahead, so that the last step waits for none
        waited_s = sum(rank.data_time_s[1:])
        assert waited_s >= (3 * accum - 1) * 2 * PAUSE_S, rank.data_time_s
        assert sum(rank.time_s[1:]) + waited_s <= rank.measured_wall_s, "no wait is in a step, too"


@pytest.mark.slow
def test_recorded_runs_can_be_compared(tmp_path):
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed; pip install 'llmbench[bench]'")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        train(tmp_path / name, "accelerate", 1, 1, True)
        (file,) = result_files(tmp_path / name / "results")
        (tmp_path / "all" / name).mkdir(parents=True)
        text = json.loads(file.read_text())
        (tmp_path / "all" / name / "run.json").write_text(
            json.dumps(text | {"run_id": f"callback.{name}.0.1"})
        )
    command = [
        sys.executable,
        "-m",
        "llmbench.cli",
        "compare",
        "callback.one.0.1",
        "callback.two.0.1",
        "--results",
        tmp_path / "all",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "comparable" in done.stdout, done.stdout + done.stderr
