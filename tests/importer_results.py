"""A small file of every result format, typed or made for the tests: name of the format to content,
and the text of its numbers.
"""

import json

from llmbench.importers.eventfile import Point, event_bytes
from llmbench.importers.profiles.workbook import workbook_bytes
from llmbench.importers.trackers.wandbfile import file_bytes


def _lines(*objects, mark: str = "") -> str:
    return "".join(f"{mark}{json.dumps(o)}\n" for o in objects)


def _mllog(key, value=None, time_ms=None, **meta) -> dict:
    return {"key": key, "value": value, "metadata": meta} | (
        {"time_ms": time_ms} if time_ms else {}
    )


def _x(cat: str, name: str, ts: float, dur: float, **args) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


_TRAINER = {
    "epoch": 3.0,
    "global_step": 45,
    "is_world_process_zero": True,
    "log_history": (
        [
            {
                "epoch": 0.6,
                "grad_norm": 47.75 - i,
                "learning_rate": 0.00016,
                "loss": 8.3368 - i,
                "step": 10 * i,
            }
            for i in range(1, 5)
        ]
        + [
            {
                "epoch": 3.0,
                "step": 45,
                "train_loss": 2.382,
                "train_runtime": 472.0904,
                "train_steps_per_second": 0.095,
            }
        ]
    ),
    "max_steps": 45,
    "train_batch_size": 2,
}
_GOLDEN = {
    "lm loss": {
        "start_step": 1,
        "end_step": 20,
        "step_interval": 5,
        "values": {"1": 10.78539, "5": 10.78533, "10": 10.76704, "15": 10.6, "20": 10.45735},
    },
    "mem-max-allocated-bytes": {
        "start_step": 1,
        "end_step": 20,
        "step_interval": 5,
        "values": {"1": 95589097472.0, "5": 111387049984.0},
    },
    "iteration-time": {
        "start_step": 10,
        "end_step": 20,
        "step_interval": 10,
        "values": {"1": "nan", "10": 38.98469, "20": 10.83873},
    },
}
_TPRIMAT = {
    "platform": "nvd",
    "gpu_info": {
        "device_count": 8,
        "device_name": "NVIDIA H100 80GB HBM3",
        "total_memory_gb": 85.01789,
        "software_version": "12.8",
    },
    "parallelism_config": {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 2,
        "data_parallel_size": 4,
        "gradient_accumulation_steps": 16,
    },
    "training_config": {
        "max_steps": 4,
        "global_batch_size": 64,
        "micro_batch_size": 1,
        "sequence_length": 2048,
        "num_gpus": 8,
    },
    "performance_metrics": {"total_steps": 4, "avg_step_time_seconds": 3.3},
    "step_times": [36.89, 3.5, 3.25, 3.125],
    "loss_values": [12.57, 12.1, 11.5, 10.25],
    "learning_rates": [6e-06, 1.2e-05, 1.8e-05, 2.4e-05],
    "memory_metrics": {"peak_memory_allocated_gb": 36.17082},
}
_FLAT = {
    "strategy": "ddp",
    "world_size": 2,
    "rank": 0,
    "seq_len": 2048,
    "tier": "A",
    "steps": 100,
    "per_device_batch": 1,
    "grad_accum": 4,
    "tokens_per_sec": 8369.455,
    "mean_step_time_sec": 0.4893986,
    "mean_loss": 6.13,
    "peak_vram_gb": 13.96808448,
    "h2d_gbps_per_gpu": 1.67e-05,
}
_AUTOMODEL = [
    {
        "step": i,
        "epoch": 0,
        "timestamp": "2026-04-01T16:06:12.572Z",
        "loss": 0.96 - i / 8,
        "grad_norm": 80.5,
        "lr": 1.9e-06,
        "mem": 8.25,
        "tps": 2276.0,
        "tps_per_gpu": 284.5,
        "mfu": 0.15,
        "num_tokens_per_step": 13451 + i,
        "num_label_tokens": 267,
    }
    for i in range(5)
]
_MLLOG = [
    _mllog("submission_benchmark", "llama2_70b_lora"),
    _mllog("seed", 22229),
    _mllog("global_batch_size", 8),
    _mllog("run_start", None, 1759904818180),
    _mllog("block_start", None, 1759904818180, samples_count=160, step=0),
    _mllog(
        "tracked_stats", {"train_loss": 2.15}, 1759904825527, samples_count=80, lr=0.0006, step=10
    ),
    _mllog(
        "tracked_stats", {"train_loss": 1.75}, 1759904832914, samples_count=160, lr=0.0005, step=20
    ),
    _mllog("tracked_stats", {"train_step_time": 0.7428}, 1759904833036, samples_count=160),
    _mllog("eval_accuracy", 0.957, 1759904840000, samples_count=160),
    _mllog("run_stop", None, 1759904840001, samples_count=160, status="success"),
]
_TRACE = {
    "schemaVersion": 1,
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "deviceProperties": [
        {"id": i, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992} for i in range(4)
    ],
    "traceEvents": [
        _x("user_annotation", "ProfilerStep#551", 1000.0, 600.0),
        _x("kernel", "gemm", 1020.0, 300.0, device=3),
        _x("kernel", "ncclDevKernel_AllReduce_Sum_bf16(x)", 1250.0, 200.0, device=3),
        _x("user_annotation", "ProfilerStep#552", 1600.0, 610.0),
    ],
}
_ROCPROF = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"gemm",100,546863066,5468630,29.758\n"ncclDevKernel_Generic_1(x)",10,20000000,2000000,1.1\n'
_NSYS = """19: [6/8] Executing 'cuda_gpu_kern_sum' stats report
19: 
19:  Time (%)  Total Time (ns)  Instances   Avg (ns)     Med (ns)    Name
19:  --------  ---------------  ---------  -----------  ----------  ----------
19:      22.3      20494076211        202  101455822.8  83354766.5  ncclKernel_AllReduce_TREE_LL_Sum_float(ncclDevComm *, unsigned long)
19:      10.1       9286919710       4848    1915618.8   2295428.5  ampere_fp16_s16816gemm_fp16
19: 
"""
_MILABENCH = [
    {"event": "config", "data": {"name": "llm-lora-single", "tags": []}},
    {"event": "start", "data": {"command": ["python", "main.py"], "time": 1724791228.5}},
    *({"event": "data", "data": {"task": "train", "loss": 11.75 - i}} for i in range(4)),
    *(
        {"event": "data", "data": {"task": "train", "rate": 2546.5 + i, "units": "items/s"}}
        for i in range(4)
    ),
    {
        "event": "data",
        "data": {"task": "main", "gpudata": {"0": {"memory": [41814.5, 81920.0], "power": 115.0}}},
    },
    {"event": "end", "data": {"time": 1724791527.5, "return_code": 0}},
]
_SUPERBENCH = {
    "node": "n1",
    "gpt_models/pytorch-gpt2-large/steptime_train_float16": 194.5,
    "gpt_models/pytorch-gpt2-large/throughput_train_float16": 41.125,
    "nccl-bw/allreduce_8589934592_busbw:0": 235.36,
}
_OPTIMUM = (
    "backend.version,backend.seed,benchmark.dataset_shapes.sequence_length,benchmark.training_arguments.max_steps,benchmark.training_arguments.per_device_train_batch_size,model,environment.gpus,training.runtime(s),training.throughput(samples/s),warmup.runtime(s),help\n2.1.1,42,256,140,16,Llama-2-7b,['NVIDIA"
    ' A100-SXM4-80GB\'],90.8289,17.6155,36.811,"several\nlines"\n'
)
_ADO = (
    "config,cpu_family,wallClockRuntime,status,provider\nA-n5,0.0,84.45,ok,A\nB-n2,1.0,598.88,Timed"
    " out.,B\n"
)
_POINTS = [
    Point(tag, step, 1.7e9 + step, value)
    for step in range(1, 6)
    for tag, value in (
        ("lm loss", 11.0 - step / 4),
        ("learning-rate", 0.5),
        ("grad-norm", 2.25),
        ("iteration-time", 0.75),
    )
]
_WORKBOOK = {
    "gpu_timeline": [
        ["type", "time ms", "percent"],
        ["computation_time", 43644.5, 96.125],
        ["total_time", 45396.5, 100],
    ],
    "coll_analysis": [
        [
            "rank",
            "Collective name",
            "dtype",
            "In msg nelems",
            "Out msg nelems",
            "dur_sum",
            "operation_count",
        ],
        [0, "allreduce", "Float", 2, 2, 1431161.5, 32],
    ],
}
_LLAMAFACTORY = [
    {
        "current_steps": s,
        "total_steps": 40,
        "loss": 9 - s / 16,
        "lr": 1e-05,
        "epoch": 0.5,
        "percentage": 25.0,
        "elapsed_time": "0:00:12",
        "throughput": round(s * 8192 / (5 + 2.5 * s), 2),
        "total_tokens": 8192 * s,
    }
    for s in (10, 20, 30, 40)
]
_SWIFT = [
    {
        "loss": 3 - s / 16,
        "grad_norm": 1.9,
        "learning_rate": 0.0001,
        "memory(GiB)": 11.29,
        "train_speed(iter/s)": round(s / (3 + 4 * s), 6),
        "epoch": 0.1,
        "global_step/max_steps": f"{s}/15",
        "percentage": "5%",
        "elapsed_time": "1m 39s",
    }
    for s in (5, 10, 15)
]
_LIGHTNING = (
    "loss,iter,step,epoch,iter_time,remaining_time,tokens,total_tokens,learning_rate,time,batches,"
    "samples,lengths\n"
) + "".join(
    f"{9.5 - i},{4 * i},{4 * i - 1},0,0.45,60.0,{32768 * i},{262144 * i},0.0004,{3.125 + 2 * i},{4 * i},"
    f"{16 * i},{32768 * i}\n"
    for i in (1, 2, 3, 4)
)
_WANDB = [
    {
        "_step": 2 * i,
        "_timestamp": 1.75e9 + 25.25 * i,
        "train/loss": 3 - i / 4,
        "train/learning_rate": 1e-05,
        "train/global_step": 10 * i,
        "train/num_input_tokens_seen": 81920 * i,
    }
    for i in (1, 2, 3, 4)
]
_SUMMARY = {
    "_step": 80,
    "_runtime": 612.5,
    "_wandb": {"runtime": 612},
    "loss": 2.25,
    "iteration": 40,
}


def _sized(field: int, content: bytes) -> bytes:
    "A field of a message: its number, its length, its content."
    head = b""
    for value in (field << 3 | 2, len(content)):
        while value > 127:
            head += bytes([value & 127 | 128])
            value >>= 7
        head += bytes([value])
    return head + content


def _wandb_row(told: dict) -> bytes:
    items = (_sized(1, k.encode()) + _sized(16, json.dumps(v).encode()) for k, v in told.items())
    return _sized(2, b"".join(_sized(1, item) for item in items))


TEXT_RESULTS: dict[str, bytes] = {
    name: text.encode()
    for name, text in {
        "hf-trainer": json.dumps(_TRAINER, indent=1),
        "megatron-golden-values": json.dumps(_GOLDEN, indent=1),
        "tprimat-json": json.dumps(_TPRIMAT, indent=1),
        "distributed-benchmark-json": (
            "[Step 0010] Loss: 10.53, Time: 0.489s\nBENCHMARK_RESULT_JSON_START\n"
            + json.dumps(_FLAT, indent=1)
            + "\nBENCHMARK_RESULT_JSON_END\n"
        ),
        "mlperf-system": json.dumps({"accelerators_per_node": "8", "number_of_nodes": "1"}),
        "lightning-csv": _LIGHTNING,
        "wandb-history": _lines(*_WANDB),
        "wandb-summary": json.dumps(_SUMMARY),
        "llamafactory": _lines(*_LLAMAFACTORY),
        "ms-swift": _lines(*_SWIFT),
        "automodel-jsonl": _lines(*_AUTOMODEL),
        "mlperf-mllog": _lines(*_MLLOG, mark=":::MLLOG "),
        "pytorch-kineto-trace": json.dumps(_TRACE, indent=1),
        "rocprof": _ROCPROF,
        "nsys-stats-text": _NSYS,
        "milabench-data": _lines(*_MILABENCH),
        "superbench": _lines(_SUPERBENCH, _SUPERBENCH | {"node": "n2"}),
        "optimum-benchmark": _OPTIMUM,
        "ado": _ADO,
    }.items()
}
BINARY_RESULTS: dict[str, bytes] = {
    "tensorboard": event_bytes(_POINTS),
    "amd-tracelens-xlsx": workbook_bytes(_WORKBOOK),
    "wandb": file_bytes([*map(_wandb_row, _WANDB), _sized(18, b"")]),
}
NUMBERS_OF_BINARY = {
    "tensorboard": " ".join(f"{p.step} {p.value}" for p in _POINTS),
    "amd-tracelens-xlsx": json.dumps(_WORKBOOK),
    "wandb": json.dumps(_WANDB),
}
RESULT_EXCERPTS = TEXT_RESULTS | BINARY_RESULTS
