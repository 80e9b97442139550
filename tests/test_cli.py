"The command line as people and scripts meet it: speed, pipes, exit codes, one line for a mistake."

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llmbench.cli.main import VERBS
from llmbench.launch.command import visible_gpus
from llmbench.launch.sweep.execute import check_sheet
from llmbench.launch.sweep.sheet import parameters_of
from llmbench.spec.request import STRATEGIES
from llmbench.spec.resolve import load_run, resolve_run
from llmbench.spec.study import load_study

ROOT = Path(__file__).resolve().parents[1]


def llmbench(*arguments, **options):
    command = [sys.executable, "-m", "llmbench.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, **options)


def modules_after(*arguments):
    "Names of the modules that a command has imported when it is done."
    code = (
        f"import sys; from llmbench.cli.main import main; main({list(arguments)!r});"
        " sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    return set(done.stderr.split())


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom llmbench.cli.main import main\ntry: main(['--help'])\nexcept SystemExit:"
        " sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    heavy = {"torch", "duckdb", "altair", "papermill", "pydantic", "yaml", "numpy", "tqdm", "scipy"}
    assert not heavy & set(done.stderr.split()), "--help answers at once because it imports nothing"
    assert "exit codes: 0 done" in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_shows_one_real_use(verb):
    done = llmbench(verb, "--help")
    assert done.returncode == 0 and f"example:\n  llmbench {verb}" in done.stdout


def test_every_request_of_the_project_survives_the_way_into_a_run_sheet():
    """Also those that are sound on a GPU only: their short form resolves to the same request."""
    requests = [
        load_run(f)
        for f in sorted((ROOT / "params").glob("*/*.yaml"))
        if f.parent.name != "studies"
    ]
    requests += [
        run
        for f in sorted((ROOT / "params" / "studies").glob("*.yaml"))
        for run in load_study(f).runs
    ]
    assert len(requests) > 60
    given = {
        "model": "llama3.1-8b",
        "world_size": 8,
        "seq_len": 2048,
        "batch": {"micro": 1},
        "hardware": "h100",
        "strategy": "fsdp",
        "precision": "bf16",
    }
    levers = [
        {"strategy": {"name": "zero3", "quantize": "both", "hpz": 4}},
        {"precision": {"compute": "float8", "float8_by": "transformer_engine"}},
        {"precision": {"compute": "float16", "loss_scale": 1024.0}},
        {"attention": "flex"},
        {"attention": "flash", "compile": True},
        {"recompute": "selective", "optimizer": {"fused": True}},
    ]
    for request in [*requests, *(resolve_run(given | lever) for lever in levers)]:
        assert resolve_run(parameters_of(request)) == request, request.name


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "params/cpu/ddp.yaml"),
        ("standalone", "params/h100/qwen2.5-7b-balanced.yaml"),
        ("doctor",),
        ("schema",),
    ],
)
def test_no_verb_that_only_looks_imports_torch(arguments):
    assert not {"torch", "deepspeed"} & modules_after(*arguments)


def test_what_show_prints_is_a_parameter_file_again():
    for file in sorted((ROOT / "params" / "cpu").glob("*.yaml")):
        shown = llmbench("show", str(file))
        assert shown.returncode == 0 and shown.stderr == ""
        assert resolve_run(yaml.safe_load(shown.stdout)) == load_run(file)


@pytest.mark.parametrize(
    "verb", [("run",), ("fit",), ("standalone",), ("data",), ("backend", "hf")]
)
def test_a_study_where_one_run_is_asked_for(verb):
    file = "params/studies/cpu-quickstart.yaml"
    done = llmbench(*verb, file)
    assert (
        done.returncode == 2
        and done.stderr == f"llmbench: {file}: a study, not one run; type llmbench sweep {file}\n"
    )


def test_every_study_resolves():
    for file in sorted((ROOT / "params" / "studies").glob("*.yaml")):
        shown = llmbench("show", str(file))
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith(f"{file.stem}: "), "a study is named after its file"


def test_schema_is_json():
    assert json.loads(llmbench("schema").stdout)["$id"] == "llmbench.run/1"


def test_a_closed_pipe_is_no_error():
    shell = f"{sys.executable} -m llmbench.cli schema | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "{\n" and done.stderr == ""


@pytest.mark.skipif(bool(visible_gpus()), reason="a machine without GPUs refuses")
def test_a_named_strategy_is_refused_without_its_gpus(tmp_path):
    import os

    here = llmbench("benchmark", "--parallel", "balanced", "--output-dir", str(tmp_path))
    assert (
        here.returncode == 2 and "name the hardware" in here.stderr and not list(tmp_path.iterdir())
    )
    env = os.environ | {"PARALLEL": "truly_identical", "OUTPUT_DIR": str(tmp_path)}
    named = llmbench("benchmark", "--model", "qwen", "--hardware", "h100", "--runs", "2", env=env)
    assert named.returncode == 1 and named.stdout.count("refused: ") == 2
    rows = [json.loads(p.read_text()) for p in tmp_path.glob("named-strategies/*/run.json")]
    assert sorted(r["attempt"] for r in rows) == [1, 2] and {r["status"] for r in rows} == {
        "refused"
    }
    assert rows[0]["spec"]["strategy"]["tp"] == 4 and rows[0]["spec"]["strategy"]["pp"] == 2


def test_a_traceback_only_on_request():
    import os

    plain = llmbench("show", "nowhere.yaml")
    debug = llmbench("show", "nowhere.yaml", env=os.environ | {"LLMBENCH_DEBUG": "1"})
    assert plain.returncode == debug.returncode == 2
    assert plain.stderr.count("\n") == 1 and "Traceback" in debug.stderr


def test_doctor_names_every_strategy():
    done = llmbench("doctor")
    assert all(f" {name} " in done.stdout for name in STRATEGIES)


def test_wrong_arguments_are_one_line():
    for arguments in (["shwo", "x"], ["show"], ["run", "params/cpu/ddp.yaml", "--frce"], []):
        done = llmbench(*arguments)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == "", (
            done.stderr
        )


def test_the_run_sheet_takes_every_key_of_a_request():
    check_sheet(ROOT / "nbs" / "runs" / "benchmark.ipynb", {})
