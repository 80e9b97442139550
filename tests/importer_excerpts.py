"""A few lines of every format that importers read, typed for the tests: name of the format to
content.

A new format joins the quick test, the fuzz runs and the test of size by an entry here.
"""

_MEGATRON = (
    " [2025-12-18 22:03:5{i}] iteration {i:8d}/      50 | consumed samples: {n:12d} | elapsed time"
    " per iteration (ms): {t:.1f} | throughput per GPU (TFLOP/s/GPU): 11.6 | learning rate:"
    " 1.500000E-05 | global batch size:    32 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm:"
    " 31.849 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
_ARGUMENTS = """------------------------ arguments ------------------------
  bf16 ............................................ True
  data_parallel_size .............................. 2
  global_batch_size ............................... 32
  log_interval .................................... 1
  micro_batch_size ................................ 1
  num_layers ...................................... 32
  seq_length ...................................... 1024
  tensor_model_parallel_size ...................... 4
  pipeline_model_parallel_size .................... 1
  world_size ...................................... 8
-------------------- end of arguments ---------------------
"""


def _rows(line: str, first: int = 1, count: int = 6) -> str:
    text = (
        line.format(i=i, n=32 * i, t=8061.9 + 3.1 * i, s=8.0619 + i / 8, loss=11.5 - 0.25 * i)
        for i in range(first, first + count)
    )
    return "\n".join(text) + "\n"


_PRIMUS = (
    "[\x1b[32m20251218 08:15:50\x1b[0m][\x1b[36mrank-7/8\x1b[0m][\x1b[1mINFO \x1b[0m]"
    " \x1b[1m[--------trainer.py:2578] : "
    + " iteration {i:8d}/      50 | consumed samples: {n:12d} | elapsed time per iteration (ms):"
    " {t:.1f}/37907.9 | hip mem usage/free/total/usage_ratio: 159.96GB/32.02GB/191.98GB/83.32% |"
    " tokens per GPU (tokens/s/GPU): 11668.7/8291.2 | learning rate: 1.000000E-05 | global batch"
    " size:   256 | lm loss: {loss:.6E} | number of skipped iterations:   0 |\x1b[0m"
)
_BRIDGE = "Step Time : {s:.2f}s GPU utilization: 528.1MODEL_TFLOP/s/GPU\n" + _MEGATRON
_NEOX = (
    "[2023-10-19 23:12:09,655] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | forward:"
    " 102.35 | backward: 314.96 | step: 6.52\nsteps: {i} loss: {loss:.4f} iter time (s): 0.781"
    " samples/sec: 655.594\n samples/sec: 654.083 | iteration {i:8d}/     512 | elapsed time per"
    " iteration (ms): {t:.1f} | learning rate: 3.420E-04 | approx flops per GPU: 42.1TFLOPS |"
    " lm_loss: {loss:.6E} | loss scale: 4096.0 | number of skipped iterations:   0 |"
)
_DEEPSPEED = (
    "[2023-04-18 01:46:5{i},171] [INFO] [timer.py:199:stop]"
    " epoch=0/micro_step={i}0/global_step={i}0, RunningAvgSamplesPerSec=173.44,"
    " CurrSamplesPerSec=171.97, MemAllocated=3.96GB, MaxMemAllocated=22.95GB"
)
_NEMO2 = (
    "demo/0 [default0]:Training epoch 0, iteration {i}/19 | lr: 1.499e-07 | global_batch_size: 512"
    " | global_step: {i} | reduced_train_loss: {loss:.2f} | train_step_timing in s: {s:.3f}"
)
_NEMO1 = (
    "Epoch 0: :   5%|▌  | {i}/20 [00:21<06:46, v_num=None, reduced_train_loss=11.00,"
    " global_step={i}.000, train_step_timing in s=21.40]DLL 2025-06-12 00:02:13.549782 - {i}"
    " reduced_train_loss : {loss}  lr : 0.0  global_step : {i}.0  train_step_timing in s : {s} "
    " epoch : 0 "
)
_TITAN = (
    "[rank0]:[titan] 2026-05-24 19:58:2{i},644 - root - INFO - \x1b[31mstep: {i:2d}  \x1b[32mloss:"
    " {loss:8.5f}  \x1b[38;2;180;60;0mgrad_norm: 24.7500  \x1b[38;2;54;234;195mmemory:"
    " 160.92GiB(90.22%)  \x1b[34mtps: 11,454  \x1b[36mtflops: 1,065.05  \x1b[35mmfu: 32.76%\x1b[39m"
)
_NANOCHAT = (
    "step 0000{i}/16704 (0.00%) | loss: {loss:.6f} | lrm: 1.00 | dt: {t:.2f}ms | tok/sec: 833,525 |"
    " mfu: 52.10 | epoch: 1 | total time: 0.00m"
)

_MODDED = "step:{i}/1750 train_time:{n}ms step_avg:32.00ms"
_LLMC = (
    "step    {i}/19560 | loss {loss:.6f} (+nanz)| norm 15.1374 (+nanz)| lr 8.57e-07 | {t:.2f} ms |"
    " 29.2% bf16 MFU | 113446 tok/s"
)
_NANOGPT = "iter {i}: loss {loss:.4f}, time {t:.2f}ms, mfu 22.83%"
_MAXTEXT = (
    "completed step: {i}, seconds: {s:.3f}, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758,"
    " total_weights: 196608, loss: {loss:.3f}, lr: 3.000e-05, grad_norm: 0.75"
)
_NANOTRON = (
    "10/17/2025 16:31:5{i} [INFO|DP=0|PP=0|TP=0]: iteration: {i} / 50 | consumed_tokens: 85.8G |"
    " elapsed_time_per_iteration_ms: {t:.1f} | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 2.85K"
    " | global_batch_size: 64 | lm_loss: {loss:.2f} | lr: 1e-05 | model_tflops_per_gpu: 38.3 |"
    " hardware_tflops_per_gpu: 38.3 | grad_norm: 1.25"
)
_TORCHTUNE = (
    "Step {i} | loss:{loss} lr:2e-05 tokens_per_second_per_gpu:57.82888 grad_norm:1.5"
    " peak_memory_active:14.5 peak_memory_alloc:14.25 peak_memory_reserved:16.5 "
)
_LITGPT = (
    "Epoch 1 | iter {i} step {i} | loss train: {loss:.3f}, val: 2.861 | iter time: {t:.2f} ms (step)"
    " remaining time: 0:01:54"
)
_OLMO = (
    "2026-04-01 12:00:00\tnode-1:0\tolmo_core:62\tINFO\t[step={i}/50,epoch=1,eta=1h]\n"
    "    train/CE loss={loss:.4f}\n    optim/total grad norm=0.5816\n    optim/LR (group 0)=0.0005\n"
    "    throughput/device/BPS={s:.3f}\n    throughput/device/TPS=258,163\n"
    "    throughput/total tokens={n}\n    gpu_memory/GPU reserved mem (GiB)=62.69"
)
_COMPOSER = (
    "[batch={i}/50]:\n\t Train time/sample: {n}\n\t Train time/token: {n}00\n"
    "\t Train loss/train/total: {loss:.4f}\n\t Train throughput/device/tokens_per_sec: 7110.6\n"
    "\t Train memory/peak_allocated_mem: 44.6420\n\t Train lr-DecoupledAdamW/group0: 0.0001"
)
_VERL = (
    "(TaskRunner pid=71) step:{i} - actor/pg_loss:0.25 - actor/grad_norm:{loss} - actor/lr:1e-06"
    " - perf/max_memory_allocated_gb:62.447 - perf/total_num_tokens:{n} - perf/time_per_step:{s:.3f}"
    " - perf/throughput:3283.25"
)
_LEVANTER = (
    "INFO :: Progress on:train {i}.0it/50.0it rate:{s:.1f}s/it remaining:1:05:15 elapsed:31:40"
    " postfix:loss={loss}"
)

_TEXTS = {
    "primus": _rows(_PRIMUS),
    "megatron-bridge": _rows(_BRIDGE),
    "gpt-neox": "NeoXArgs.from_ymls() ['70M.yml']\n" + _rows(_NEOX),
    "deepspeed": (
        "[INFO] [config.py:962:print]   train_batch_size ............. 128\n"
        + _rows(_DEEPSPEED)
        + "ppl: 2.0179\n"
    ),
    "megatron-lm": _ARGUMENTS + _rows(_MEGATRON),
    "nemo-2": "All distributed processes registered. Starting with 8 processes\n" + _rows(_NEMO2),
    "nemo-1": "GPU 0: NVIDIA B200 (UUID: GPU-0)\n" + _rows(_NEMO1, first=0),
    "torchtitan": (
        "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1,"
        " ep=1\n" + _rows(_TITAN)
    ),
    "nanochat": (
        "Autodetected device type: cuda\nnum_layers: 24\n"
        + _rows(_NANOCHAT)
        + "Peak memory usage: 62389.67MiB\n"
    ),
    "modded-nanogpt": "Total parameters: 275,742,784\n" + _rows(_MODDED),
    "llm.c": "| sequence length T     | 1024  |\n" + _rows(_LLMC),
    "nanogpt": "step 0: train loss 10.9886, val loss 10.9897\n" + _rows(_NANOGPT),
    "maxtext": "Config param max_target_length: 2048\nNum_devices: 4, shape (1, 4)\n"
    + _rows(_MAXTEXT, first=0),
    "nanotron": "  tokens=TokensArgs(sequence_length=1024,\n" + _rows(_NANOTRON),
    "torchtune": "batch_size: 4\ngradient_accumulation_steps: 8\ndtype: bf16\n" + _rows(_TORCHTUNE),
    "litgpt": "Total parameters: 1,100,048,384\n" + _rows(_LITGPT),
    "olmo-core": "Device: NVIDIA H100, Device peak FLOPS: 989500000000000\n" + _rows(_OLMO),
    "composer": "Config:\nmax_seq_len: 4096\nprecision: amp_bf16\n" + _rows(_COMPOSER),
    "verl": "step:0 - val-core/gsm8k/acc/mean@1:0.508\n" + _rows(_VERL),
    "levanter": "INFO :: First batch loaded\n" + _rows(_LEVANTER),
}

EXCERPTS: dict[str, bytes] = {name: text.encode() for name, text in _TEXTS.items()}
TEXT_FORMATS = tuple(_TEXTS)  # a log in lines: these are cut, shuffled and interleaved

LINES = {
    "primus": _PRIMUS,
    "megatron-bridge": _BRIDGE,
    "gpt-neox": _NEOX,
    "deepspeed": _DEEPSPEED,
    "megatron-lm": _MEGATRON,
    "nemo-2": _NEMO2,
    "nemo-1": _NEMO1,
    "torchtitan": _TITAN,
    "nanochat": _NANOCHAT,
    "modded-nanogpt": _MODDED,
    "llm.c": _LLMC,
    "nanogpt": _NANOGPT,
    "maxtext": _MAXTEXT,
    "nanotron": _NANOTRON,
    "torchtune": _TORCHTUNE,
    "litgpt": _LITGPT,
    "olmo-core": _OLMO,
    "composer": _COMPOSER,
    "verl": _VERL,
    "levanter": _LEVANTER,
}


def write_long(name: str, path, size: int) -> int:
    "A log of `size` bytes whose steps and figures never repeat; how many rows it has."
    step = 6
    with path.open("wb") as file:
        written = file.write(EXCERPTS[name])
        while written < size:
            step += 1
            line = LINES[name].format(
                i=step,
                n=32 * step,
                t=8000 + step % 9973 / 7,
                s=8 + step % 9973 / 997,
                loss=2 + step % 10007 / 1009,
            )
            written += file.write(line.encode() + b"\n")
    return step


_PRINTED = (
    " 10%|#         | {i}/40 [00:0{i}<00:06,  4.1it/s]\r{{'loss': {loss}, 'grad_norm': 1.5,"
    " 'learning_rate': 2e-05, 'num_tokens': {n}.0, 'train_runtime': {s:.3f},"
    " 'memory/max_allocated (GiB)': 25.45, 'epoch': 0.5}}"
)
TRAINER_CONSOLE = (
    "  Instantaneous batch size per device = 4\n"
    "  Total train batch size (w. parallel, distributed & accumulation) = 16\n"
    "  Gradient Accumulation steps = 2\n"
    + _rows(_PRINTED)
    + "{'train_runtime': 48.0, 'train_steps_per_second': 0.833, 'train_loss': 2.382, 'epoch': 3.0}\n"
).encode()
