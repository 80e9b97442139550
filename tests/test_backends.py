"""Other frameworks: what is rendered for them stays what it was, and what they train is the same
training.
"""

import ast
import csv
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from llmbench.analysis.parity import run_verdict
from llmbench.analysis.training import training_is_real
from llmbench.core.errors import RequestError
from llmbench.core.numbers import test_near
from llmbench.core.schema import dump_run
from llmbench.frameworks.base import (
    backend_refusal,
    is_installed,
    matters,
    render_backend,
    settings_of,
    shell_text,
)
from llmbench.frameworks.run import BACKENDS, run_backend
from llmbench.frameworks.strategies import is_fsdp
from llmbench.frameworks.study import under_frameworks
from llmbench.launch.local import run_local
from llmbench.launch.sweep.sweep import sweep
from llmbench.report.build import build_report
from llmbench.spec.named import GOALS, MODELS, named_request, own_strategies
from llmbench.spec.resolve import resolve_run
from llmbench.spec.study import resolve_study

DATA = Path(__file__).parent / "data" / "backends"
TINY = {"name": "llama-tiny", "n_layers": 2, "d_model": 64, "d_ff": 176, "vocab_size": 512}
REQUEST = {
    "model": TINY,
    "seq_len": 32,
    "batch": {"micro": 2, "accum": 2},
    "steps": 4,
    "warmup_steps": 1,
    "collective_steps": 0,
    "optimizer": {"lr": 1e-2, "lr_warmup_steps": 2, "weight_decay": 0.1},
}


def rendering(backend, strategy, model, hardware):
    launch = render_backend(
        BACKENDS[backend],
        resolve_run(named_request(strategy, model, hardware)),
        "OUT",
        cores=8,
        python="python",
    )
    files = [
        f"==> {name}\n{text}"
        for name, text in launch.files.items()
        if name not in ("spec.yaml", "arguments.txt")
    ]
    head, _, command = shell_text(launch).rpartition("exec ")
    return "\n".join([f"{head}exec " + command.replace(" --", " \\\n  --"), *files])


@pytest.mark.parametrize("backend", ["megatron", "nemo", "megatron-bridge", "primus"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", GOALS)
def test_renderings_stay_what_they_were(monkeypatch, backend, model, strategy):
    "LLMBENCH_UPDATE=1 writes them anew; the difference belongs into the commit."
    for variable in ("MEGATRON_PATH", "PRIMUS_PATH", "BRIDGE_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NEMO_PYTHON", "python")  # also where make nemo-env has built another
    text = rendering(backend, strategy, model, "mi300x" if backend == "primus" else "h100")
    kept = DATA / f"{backend}-{model}-{strategy}.txt"
    if os.environ.get("LLMBENCH_UPDATE"):
        kept.write_text(text)
    assert text == kept.read_text()


@pytest.mark.parametrize("name", BACKENDS)
def test_no_setting_is_dropped_in_silence(name):
    backend, odd = (
        BACKENDS[name],
        {
            "compile": True,
            "recompute": "selective",
            "precision": "bf16",
            "strategy": "ddp",
            "world_size": 2,
            "hardware": "h100",
        },
    )
    model = "llama3.1-8b" if name in ("nemo", "primus") else TINY
    spec = resolve_run(
        REQUEST | odd | {"model": model, "checkpoint": {"every": 2}, "profile": {"steps": 1}}
    )
    said = [n.text for n in render_backend(backend, spec, "OUT").notes]
    for place, value in settings_of(spec):
        honoured = any(place == h or place.startswith(f"{h}.") for h in backend.honours)
        assert (
            honoured
            or not matters(spec, place, value)
            or any(t.startswith(f"{place} = ") for t in said)
        ), place
    assert any(t.startswith("checkpoint = ") for t in said) and any(
        t.startswith("profile = ") for t in said
    )


def test_a_missing_framework_is_refused_with_the_line_to_type(monkeypatch):
    monkeypatch.delenv("MEGATRON_PATH", raising=False)
    monkeypatch.setenv("PRIMUS_PATH", "/nowhere")
    spec = resolve_run(REQUEST | {"strategy": "ddp", "world_size": 2, "hardware": "h100"})
    assert "set MEGATRON_PATH" in backend_refusal(BACKENDS["megatron"], spec)
    assert "has no examples/run_pretrain.sh" in backend_refusal(BACKENDS["primus"], spec)
    with pytest.raises(RequestError, match="has no strategy tp"):
        BACKENDS["hf"].check(resolve_run(REQUEST | {"strategy": "tp", "world_size": 2}))
    with pytest.raises(RequestError, match="no zero2 on a CPU"):
        BACKENDS["accelerate"].check(resolve_run(REQUEST | {"strategy": "zero2", "world_size": 2}))


def test_job_files_parse():
    spec = resolve_run(REQUEST | {"strategy": "fsdp", "world_size": 2})
    assert (
        tomllib.loads(render_backend(BACKENDS["torchtitan"], spec, "OUT").files["job.toml"])[
            "training"
        ]["global_batch_size"]
        == 8
    )
    assert (
        json.loads(
            render_backend(
                BACKENDS["deepspeed"],
                resolve_run(REQUEST | {"strategy": "zero1", "world_size": 2}),
                "OUT",
            ).files["deepspeed.json"]
        )["train_batch_size"]
        == 8
    )


NEEDS = {
    "hf": "transformers",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
}
PARITY = {"torchtitan": 2e-5}  # its log has five or six digits


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_training_under_each_framework(tmp_path, ranks):
    plain = {"strategy": "ddp" if ranks > 1 else "single", "world_size": ranks}
    own = run_local(resolve_run(REQUEST | plain), tmp_path / "own")
    for name, package in NEEDS.items():
        if importlib.util.find_spec(package) is None:
            continue
        split = (
            {"strategy": "fsdp", "world_size": ranks}
            if name == "torchtitan" and ranks > 1
            else plain
        )
        run = run_backend(BACKENDS[name], resolve_run(REQUEST | split), tmp_path / name)
        assert run.status == "ok", f"{name}: {run.reason}"
        test_near(run.steps.loss, own.steps.loss, rel=PARITY.get(name, 1e-6))
        assert (
            run.source.kind == "import"
            and run.spec.batch.global_tokens == own.spec.batch.global_tokens
            and run.spec.world_size == ranks
        )
        assert run.spec.warmup_steps == 1 and run.env.cpu.name == own.env.cpu.name
        timed = (
            run.steps.time_s[1:] if name == "torchtitan" else run.steps.time_s
        )  # no stamp before torchtitan's first line
        assert all(t > 0 for t in timed)
        assert [len(r.data_time_s) for r in run.ranks] == [len(run.steps.step)] * ranks
        assert all(None not in r.data_time_s for r in run.ranks), f"{name}: no wait for batches"
        assert name == "torchtitan" or run.spec.data.fingerprint == own.spec.data.fingerprint


PARSE = """
import importlib.abc, importlib.machinery, os, sys, types
import torch, torch.utils.flop_counter

class Nothing(types.ModuleType):
    "A module of which every name is another one; Megatron asks for Triton and never calls it here."
    __path__, __version__ = [], "3.4.0"
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name)
    def __call__(self, *a, **k):
        return a[0] if len(a) == 1 and callable(a[0]) and not k else (lambda f: f)
    def __getitem__(self, key):
        return self

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "triton" else None
    def create_module(self, spec):
        return Nothing(spec.name)
    def exec_module(self, module):
        pass

torch.compile = lambda f=None, **k: f if f else (lambda g: g)
torch.cuda.get_device_capability = lambda *a: (9, 0)
torch.cuda.get_device_properties = lambda *a: types.SimpleNamespace(major=9, minor=0)
sys.meta_path.insert(0, Finder())
sys.path.insert(0, os.environ["MEGATRON_PATH"])
from megatron.training import arguments
args = arguments.parse_args()
arguments.validate_args(args)
print("PARSED", args.data_parallel_size, args.global_batch_size, args.num_layers, args.tensor_model_parallel_size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", GOALS)
def test_megatron_takes_its_arguments(model, strategy):
    """Against the parser and the checks of the Megatron-LM in MEGATRON_PATH (core_v0.16.1 was
    tried); no GPU is needed.
    """
    if not os.environ.get("MEGATRON_PATH"):
        pytest.skip("MEGATRON_PATH names no Megatron-LM")
    spec = resolve_run(named_request(strategy, model, "h100"))
    launch = render_backend(BACKENDS["megatron"], spec, "OUT")
    env = (
        os.environ
        | launch.env
        | {
            "RANK": "0",
            "WORLD_SIZE": str(spec.world_size),
            "LOCAL_RANK": "0",
        }
    )
    done = subprocess.run(
        [sys.executable, "-c", PARSE, *launch.files["arguments.txt"].split("\n")[:-1]],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    s, sequences = spec.strategy, spec.batch.global_tokens // spec.seq_len
    assert f"PARSED {s.dp} {sequences} {spec.model.n_layers} {s.tp}" in done.stdout, done.stderr[
        -1500:
    ]


CLASSES = {  # of each section, in megatron-bridge 0.3.1 and megatron-core 0.16.1
    "model": "GPTModelProvider",
    "train": "TrainingConfig",
    "optimizer": "OptimizerConfig",
    "scheduler": "SchedulerConfig",
    "ddp": "DistributedDataParallelConfig",
    "dataset": "GPTDatasetConfig",
    "logger": "LoggerConfig",
    "tokenizer": "TokenizerConfig",
    "checkpoint": "CheckpointConfig",
    "rng": "RNGConfig",
    "dist": "DistributedInitConfig",
    "mixed_precision": "MixedPrecisionConfig",
}
FILES = [
    "bridge/models/gpt_provider.py",
    "bridge/training/config.py",
    "bridge/training/mixed_precision.py",
    "bridge/training/tokenizers/config.py",
]
CORE = [
    "transformer/transformer_config.py",
    "model_parallel_config.py",
    "optimizer/optimizer_config.py",
    "distributed/distributed_data_parallel_config.py",
    "datasets/gpt_dataset.py",
    "datasets/blended_megatron_dataset_config.py",
]


def fields_of(root: Path) -> dict[str, set[str]]:
    """The fields of each class, those of the classes that it is made of included; nothing is
    imported.
    """
    own, bases = {}, {}
    for file in [
        *(root / "megatron" / f for f in FILES),
        *(root / "megatron/core" / f for f in CORE),
    ]:
        tree = ast.parse(file.read_text())
        names = {
            a.asname: a.name
            for n in ast.walk(tree)
            if isinstance(n, ast.ImportFrom)
            for a in n.names
            if a.asname
        }
        for node in (n for n in tree.body if isinstance(n, ast.ClassDef)):
            key = f"{'core.' if '/core/' in file.as_posix() else ''}{node.name}"
            own[key] = {a.target.id for a in node.body if isinstance(a, ast.AnnAssign)} | {
                f.name for f in node.body if isinstance(f, ast.FunctionDef)
            }
            bases[key] = [names.get(b.id, b.id) for b in node.bases if isinstance(b, ast.Name)]

    def all_of(name: str, above: tuple[str, ...] = ()) -> set[str]:
        found = [k for k in (name, f"core.{name}") if k in own and k not in above]
        return set().union(
            *(own[k] | set().union(*(all_of(b, (*above, k)) for b in bases[k])) for k in found)
        )

    return {name: all_of(name) for name in CLASSES.values()}


@pytest.mark.slow
def test_megatron_bridge_has_every_field_that_is_set():
    """Against the sources in BRIDGE_SOURCES, where both wheels lie unpacked; nothing of them is
    imported, so no GPU and no CUDA is needed.
    """
    if not os.environ.get("BRIDGE_SOURCES"):
        pytest.skip(
            "BRIDGE_SOURCES names no folder with megatron-bridge and megatron-core unpacked"
        )
    known = fields_of(Path(os.environ["BRIDGE_SOURCES"]))
    for strategy in (*GOALS, "zero1", "zero3", "interleaved"):
        for model in MODELS:
            asked = named_request(strategy if strategy in GOALS else "balanced", model, "h100")
            if strategy not in GOALS:
                asked |= {
                    "strategy": (
                        {"name": "pp", "pp": 2, "schedule": "interleaved", "stages_per_rank": 2}
                        if strategy == "interleaved"
                        else strategy
                    ),
                    "recompute": "full",
                }
            sections = json.loads(
                render_backend(BACKENDS["megatron-bridge"], resolve_run(asked), "OUT").files[
                    "bridge.json"
                ]
            )
            sections["model"]["activation_func"] = sections["model"].pop("activation")
            for name, values in sections.items():
                assert set(values) <= known[CLASSES[name]], (
                    strategy,
                    model,
                    name,
                    sorted(set(values) - known[CLASSES[name]]),
                )


ADAPTERS = Path(__file__).parent / "adapters"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_megatron_core_trains_the_same_on_cpu_ranks(tmp_path, ranks):
    """Its GPT, DDP, optimizer and schedule with our weights and batches, its GPU calls redirected;
    MEGATRON_PATH or an installed megatron-core (0.16.1 was tried).
    """
    path = os.environ.get("MEGATRON_PATH") or os.environ.get("BRIDGE_SOURCES")
    if not path and not is_installed("megatron.core"):
        pytest.skip("no megatron-core: MEGATRON_PATH names none, and none is installed")
    plain = {
        "strategy": "ddp" if ranks > 1 else "single",
        "world_size": ranks,
        "optimizer": REQUEST["optimizer"] | {"weight_decay": 0.0},
    }
    own = run_local(resolve_run(REQUEST | plain), tmp_path / "own")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(ADAPTERS.parent.parent), str(ADAPTERS), path])
        ),
        "OMP_NUM_THREADS": "1",
    }
    many = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        if ranks > 1
        else []
    )
    done = subprocess.run(
        [sys.executable, *many, str(ADAPTERS / "megatron_core.py"), str(tmp_path / "own")],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    (line,) = [text for text in done.stdout.splitlines() if text.startswith('{"losses"')] or [
        done.stderr[-1500:]
    ]
    test_near(json.loads(line)["losses"], own.steps.loss, rel=2e-6)


@pytest.mark.slow
def test_a_study_of_frameworks_becomes_a_page(tmp_path):
    """All installed frameworks train one request, interleaved; the page says that they trained
    the same.
    """
    names = ["llmbench", *(name for name, package in NEEDS.items() if is_installed(package))]
    if len(names) < 2:
        pytest.skip("no other framework is installed")
    asked = {
        "study": "who",
        "frameworks": names,
        "repeats": 1,
        "base": REQUEST,
        "matrix": [{"strategy": "single", "world_size": 1}],
    }
    study = resolve_study(asked)
    outcome = sweep(
        study, results=tmp_path / "results", progress=False, run_one=under_frameworks(study)
    )
    assert outcome.exit_code == 0, outcome.table()
    build_report(
        tmp_path / "results",
        tmp_path / "site",
        engine="pandoc",
        source=Path(__file__).parent.parent / "reports",
    )
    with (tmp_path / "site/data/who/frameworks.csv").open(newline="") as file:
        sets = list(csv.DictReader(file))
    with (tmp_path / "site/data/who/frameworks_loss.csv").open(newline="") as file:
        apart = {row["framework"]: float(row["worst"]) for row in csv.DictReader(file)}
    assert (
        len(sets) == len(names) and len(apart) == len(names) - 1 and max(apart.values()) < 2e-5
    ), apart
    text = (tmp_path / "site/study-who.html").read_text()
    assert (
        text.count('badge yes">same training</span>') == len(names) - 1
        and "no comparison" not in text
    )


def nemo_python() -> str:
    "The Python of NeMo's own environment, as make nemo-env leaves it; skips where there is none."
    found = os.environ.get("NEMO_PYTHON") or str(
        Path(__file__).parent.parent / ".venv-nemo/bin/python"
    )
    if not Path(found).is_file():
        pytest.skip("no NeMo: type make nemo-env")
    return found


@pytest.mark.slow
def test_nemo_takes_its_recipes(tmp_path):
    """Five strategies and three models, whose model, trainer and optimizer are built in NeMo 2.7.3;
    its configuration refuses an attribute that it does not have.
    """
    python, asked, own = nemo_python(), {}, own_strategies()
    for strategy in GOALS:
        for model in (*MODELS, "mistral-7b"):
            spec = resolve_run(named_request(strategy, model, "h100", own))
            file = tmp_path / f"{strategy}_{model}.py"
            file.write_text(render_backend(BACKENDS["nemo"], spec, "OUT").files["recipe.py"])
            asked[str(file)] = spec
    done = subprocess.run(
        [python, "-W", "ignore", str(ADAPTERS / "nemo_recipes.py"), *asked],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"file"')]
    assert len(told) == len(asked) == 15, done.stderr[-1500:]
    for line in told:
        spec = asked[line.pop("file")]
        s, m = spec.strategy, spec.model
        assert line == {
            "tp": s.tp,
            "pp": s.pp,
            "steps": spec.steps,
            "devices": spec.world_size,
            "sequences": spec.batch.micro * spec.batch.accum * s.dp,
            "seq_len": spec.seq_len,
            "shape": [m.n_layers, m.d_model, m.n_heads],
            "kv_heads": m.n_kv_heads,
            "lr": spec.optimizer.lr,
            "distributed": is_fsdp(s.name),
            "plugin": "MegatronMixedPrecision",
        }


NEMO_APART = 1e-4  # absolute, in losses of 6 to 8; 7.2e-7 at most was measured
NEMO_LAYOUTS = {
    "single": {"strategy": "single", "world_size": 1},
    "ddp": {"strategy": "ddp", "world_size": 2},
    "zero1": {"strategy": "zero1", "world_size": 2},
    "tp": {"strategy": "tp", "world_size": 2},
    "pp": {"strategy": "pp", "world_size": 2},
    "gpt": {"model": {"name": "gpt-tiny", "n_layers": 2, "d_model": 64, "d_ff": 128}},
    "qwen": {"model": {"name": "qwen-tiny", "n_layers": 2}},
    "mixed": {"strategy": {"name": "mixed", "tp": 2, "pp": 2}, "world_size": 4},
    "tp-dp": {"strategy": {"name": "tp", "tp": 2, "dp": 2}, "world_size": 4},
    "recomputed": {"recompute": "full"},
    "core recomputed": {"recompute": "selective"},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", NEMO_LAYOUTS)
def test_nemo_trains_the_same_on_cpu_ranks(tmp_path, monkeypatch, layout):
    """NeMo's trainer, strategy, model and optimizer with our shape, weights and batches: the losses
    of our single process over the same sequences, step by step.
    """
    monkeypatch.setenv("NEMO_PYTHON", nemo_python())
    alone = {"strategy": "single", "world_size": 1}
    rate = {"optimizer": REQUEST["optimizer"] | {"lr": 1e-3}}
    asked = REQUEST | rate | alone | NEMO_LAYOUTS[layout]
    spec = resolve_run(asked)
    whole = {"micro": 2, "accum": 2 * spec.strategy.dp}
    own = run_local(resolve_run(asked | alone | {"batch": whole}), tmp_path / "own")
    run = run_backend(BACKENDS["nemo"], spec, tmp_path / "nemo")
    assert run.status == "ok", run.reason
    apart = [abs(a - b) for a, b in zip(run.steps.loss, own.steps.loss, strict=True)]
    assert max(apart) < NEMO_APART and own.steps.loss[-1] < own.steps.loss[0] - 0.05, apart
    test_near(run.steps.grad_norm, own.steps.grad_norm, rel=1e-3)
    assert run.spec.data.fingerprint == own.spec.data.fingerprint
    assert run.steps.tokens == own.steps.tokens and run.steps.lr == own.steps.lr
    assert run.spec.world_size == spec.world_size == len(run.ranks)
    assert run.spec.model.parameters == own.spec.model.parameters
    assert (run.env.framework, run.env.versions["nemo-toolkit"]) == ("nemo", "2.7.3")
    (problem,) = training_is_real(dump_run(run))
    assert problem.startswith("timed through an adapter")
    assert str(run_verdict(dump_run(run), dump_run(own))).startswith("no: timed through an adapter")


@pytest.mark.slow
def test_a_named_strategy_trains_under_nemo(tmp_path):
    """The verb benchmark with --framework: a layout of one's own for a CPU, trained by NeMo and by
    llmbench to the same losses.
    """
    python = nemo_python()
    (tmp_path / "settings.ini").write_text("[study]\nresults = results\n")
    (tmp_path / "params").mkdir()
    cell = "parallelism: {tiny: {llama-tiny: {cpu: {dp: 2, strategy: ddp}}}}\n"
    (tmp_path / "params/strategies.yaml").write_text(cell)
    small = ["precision=fp32", "seq_len=32", "batch.global_tokens=128", "steps=4"]
    words = ["--model", "llama-tiny", "--parallel", "tiny", "--hardware", "cpu", "--direct"]
    words += [word for change in small for word in ("-o", change)]
    losses = {}
    for framework in ("llmbench", "nemo"):
        done = subprocess.run(
            [sys.executable, "-m", "llmbench.cli", "benchmark", *words, "--framework", framework],
            cwd=tmp_path,
            env=os.environ | {"NEMO_PYTHON": python},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        name = "cpu-llama-tiny-tiny" + ("-nemo" if framework == "nemo" else "")
        (file,) = tmp_path.glob(f"results/named-strategies/*.{name}.*/run.json")
        losses[framework] = json.loads(file.read_text())["steps"]["loss"]
    apart = [abs(a - b) for a, b in zip(losses["nemo"], losses["llmbench"], strict=True)]
    assert len(apart) == 4 and max(apart) < NEMO_APART, apart
