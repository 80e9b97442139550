"The command line as people and scripts meet it: speed, pipes, exit codes, one line for a mistake."

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from token_files import project_with

from llmbench.cli.main import VERBS, build_app, main, with_values
from llmbench.cli.verbs import outcome_text
from llmbench.core.schema import Status
from llmbench.launch.command import visible_gpus
from llmbench.launch.sweep.execute import check_sheet
from llmbench.launch.sweep.sheet import REPEAT_KEYS, parameters_of
from llmbench.launch.sweep.sweep import SweepOutcome, SweepRow
from llmbench.spec.params import read_yaml
from llmbench.spec.request import STRATEGIES
from llmbench.spec.resolve import load_run, resolve_run
from llmbench.spec.study import load_study

ROOT = Path(__file__).resolve().parents[1]
STUDIES = sorted((ROOT / "params" / "studies").glob("*.yaml"))


# what `llmbench --help` needs
LIGHT = {"llmbench.cli", "llmbench.cli.main", "llmbench.cli.help", "llmbench.cli.verbs"}


def llmbench(*arguments, **options):
    command, where = [sys.executable, "-m", "llmbench.cli", *arguments], options.pop("cwd", ROOT)
    return subprocess.run(
        command, cwd=where, capture_output=True, text=True, timeout=120, **options
    )


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
    loaded = modules_after("--help")
    heavy = {"torch", "duckdb", "altair", "papermill", "pydantic", "yaml", "numpy", "tqdm", "scipy"}
    assert "cyclopts" in loaded
    assert not heavy & loaded, "--help answers at once because it imports nothing"
    rooms = {name for name in loaded if re.match(r"llmbench\.(?!core)", name)} - LIGHT
    assert not rooms, f"the modules of verbs are imported when they are called: {rooms}"
    assert "exit codes: 0 done" in llmbench("--help").stdout


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_shows_one_real_use_in_80_columns_without_colours(verb):
    done = llmbench(verb, "--help", env=os.environ | {"COLUMNS": "80", "FORCE_COLOR": "1"})
    assert done.returncode == 0 and f"example:\n  llmbench {verb}" in done.stdout
    wide = [line for line in done.stdout.splitlines() if len(line) > 80]
    assert all(line.startswith(f"  llmbench {verb} ") for line in wide), wide
    assert done.stdout.isascii() or verb == "benchmark", "no boxes"
    assert "\x1b" not in done.stdout


def test_help_and_readme_say_how_to_leave_the_published_studies_out():
    said = " ".join(llmbench("report", "--help").stdout.split())
    assert "this folder alone" in said and "the studies published with llmbench" in said
    assert "llmbench report --results" in (ROOT / "README.md").read_text()


def data_of_studies() -> set[str]:
    """The token files that studies of this project name, which lie where they were trained."""
    rows = [row for f in STUDIES for row in read_yaml(f)["matrix"]]
    return {path for row in rows for path in (row.get("data") or {}).get("paths", ())}


def test_every_request_of_the_project_survives_the_way_into_a_run_sheet(tmp_path, monkeypatch):
    """Also those that are sound on a GPU only: their short form resolves to the same request."""
    monkeypatch.chdir(project_with(tmp_path, data_of_studies()))
    requests = [
        load_run(f)
        for f in sorted((ROOT / "params").glob("*/*.yaml"))
        if f.parent.name not in ("studies", "accept")
    ]
    requests += [run for f in STUDIES for run in load_study(f).runs]
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


@pytest.mark.parametrize("verb", [("run",), ("standalone",), ("data",), ("backend", "hf")])
def test_a_study_where_one_run_is_asked_for(verb):
    file = "params/studies/cpu-quickstart.yaml"
    done = llmbench(*verb, file)
    assert (
        done.returncode == 2
        and done.stderr == f"llmbench: {file}: a study, not one run; type llmbench sweep {file}\n"
    )


def test_every_study_resolves(tmp_path):
    project = project_with(tmp_path, data_of_studies())
    code = (
        "import sys; from llmbench.cli.main import main;"
        " sys.exit(any([main(['show', file]) for file in sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", code, *map(str, STUDIES)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for file in STUDIES:
        assert f"\n{file.stem}: " in f"\n{done.stdout}", "a study is named after its file"


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
    plain = llmbench("show", "nowhere.yaml")
    debug = llmbench("show", "nowhere.yaml", env=os.environ | {"LLMBENCH_DEBUG": "1"})
    assert plain.returncode == debug.returncode == 2
    assert plain.stderr.count("\n") == 1 and "Traceback" in debug.stderr


def test_doctor_names_every_strategy():
    done = llmbench("doctor")
    assert all(f" {name} " in done.stdout for name in STRATEGIES)


def answers(capsys, *arguments):
    "Exit code, stdout and stderr of a command line, in this process."
    code = main(list(arguments))
    return code, *capsys.readouterr()


DDP = "params/cpu/ddp.yaml"
WRONG = {
    ("shwo", "x"): "unknown verb 'shwo'; did you mean show?",
    (): "name a verb",
    ("--hlep",): "unknown option '--hlep'; did you mean --help?",
    ("show",): "FILE is missing; type llmbench show --help",
    ("run", DDP, "--frce"): "unknown option '--frce'; did you mean --force?",
    ("run", DDP, "--over", "steps=3"): "unknown option '--over'; did you mean --override",
    ("run", DDP, "--attempt", "1.5"): "--attempt 1.5: must be a whole number",
    ("run", DDP, "--attempt"): "--attempt needs a value",
    ("run", DDP, "-o"): "-o needs a value",
    ("run", "--resume", DDP): "FILE is missing",
    ("run", DDP, "again"): "'again' is one argument too many",
    ("run", DDP, "--no-force"): "unknown option '--no-force'",
    ("fit", DDP, "--limit-gib", "much"): "--limit-gib much: must be a number",
    ("goodput", "--mtbf", "4h"): "--mtbf 4h: must be a number (hours between failures of a node",
    ("launch", "slrum", DDP): "unknown value 'slrum'; did you mean slurm?",
    ("launch",): "ENGINE is missing; allowed: local, docker, ssh, slurm, k8s",
    ("query", "SELECT 1", "--format", "xml"): "--format: unknown value 'xml'",
    ("export", "a"): "--to needs a value; allowed: csv, parquet",
    ("audit",): "PATHS is missing",
    ("k8s", "chekc"): "unknown value 'chekc'; did you mean check?",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_arguments_are_one_line(arguments, capsys):
    code, out, err = answers(capsys, *arguments)
    assert code == 2 and err.count("\n") == 1 and out == ""
    assert err.startswith("llmbench: ") and WRONG[arguments] in err


@pytest.mark.parametrize("text", ["[red]x[/red]", "[/bold]", "[link=file:///etc]x", "\x1b[31mx"])
def test_what_was_typed_is_text_and_no_markup(text, capsys):
    given = [text, f"--{text.replace('=', ':')}", text, text]
    forms = ["{}"], ["show", DDP, "{}"], ["show", DDP, "{}"], ["launch", "{}", DDP]
    for value, form in zip(given, forms, strict=True):
        words = [word.replace("{}", value) for word in form]
        code, out, err = answers(capsys, *words)
        assert code == 2 and err.count("\n") == 1 and out == ""
        assert value.replace("\x1b", "?") in err and "\x1b" not in err


def test_words_that_look_like_options_arrive():
    def parsed(*words):
        return build_app().parse_args(with_values(words))[1].arguments

    given = parsed("run", "-o", "a=1", "-ob=-2", "--override=c==", "--", "-x.yaml")
    assert given["file"] == "-x.yaml" and given["override"] == ("a=1", "b=-2", "c==")
    assert parsed("launch", "k8s", "f", "-s=a=b", "--set", "[1]")["asked"].set == ("a=b", "[1]")
    assert parsed("image", "build", "cpu", "--with=--network=host")["asked"].more == (
        "--network=host",
    )
    assert parsed("baseline", "save", "v1", "a=b", "c=d")["filters"] == ("a=b", "c=d")
    assert parsed("run", "f", "--attempt", "2", "--attempt", "-3")["attempt"] == -3
    resumed = [["--resume", "old", "f"], ["f", "--resume"], ["f", "--resume", "--force"]]
    assert [parsed("run", *words)["resume"] for words in resumed] == ["old", "", ""]


def test_a_shell_completes_verbs_options_values_and_files(tmp_path):
    env = os.environ | {"HOME": str(tmp_path), "SHELL": "/bin/bash"}
    done = llmbench("--install-completion", "--shell", "bash", env=env)
    assert done.returncode == 0, done.stderr
    [script] = (tmp_path / ".local/share/bash-completion").rglob("llmbench")

    def completed(*words):
        shell = (
            f"source {script}; COMP_WORDS=({' '.join(words)} ''); "
            f"COMP_CWORD={len(words) - 1}; _llmbench; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        return subprocess.run(
            ["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()

    assert completed("llmbench", "sta") == ["standalone"]
    assert completed("llmbench", "run", "--att") == ["--attempt"]
    assert completed("llmbench", "query", "--format", "c") == ["csv"]
    assert completed("llmbench", "launch", "sl") == ["slurm"]
    assert completed("llmbench", "show", "params/cpu/dd") == ["params/cpu/ddp.yaml"]


def test_the_run_sheets_take_every_key_of_a_request():
    """What a sweep always passes may have a default for JupyterLab; everything else has none."""
    passed = ("study", "attempt", "model", "strategy", "world_size", "seq_len", "batch")
    check_sheet(ROOT / "nbs/runs/benchmark.ipynb", dict.fromkeys(passed))
    check_sheet(ROOT / "nbs/runs/interleaved.ipynb", dict.fromkeys(REPEAT_KEYS), REPEAT_KEYS)


def test_a_run_ends_with_its_speed_and_its_losses():
    """What `run` and `sweep` print at the end, of a published run."""
    place = sorted((ROOT / "reports/published/cpu-quickstart").glob("*/run.json"))[0].parent
    row = SweepRow(place.name, "ddp-w2", 1, Status.ok)
    table = outcome_text(SweepOutcome((row,)), place.parent)
    assert "tokens/s" in table and "step, ms" in table and "→" in table, table


@pytest.mark.parametrize("module", ["llmbench.model.token_files", "llmbench.train.convert"])
def test_an_old_name_of_a_verb_warns_and_is_that_verb(module, tmp_path):
    (tmp_path / "book.txt").write_text("Call me Ishmael.")
    words = {
        "llmbench.model.token_files": ["tokenize", "book.txt", "--out", "book"],
        "llmbench.train.convert": ["to-hf", "weights", "out", "--name", "mine"],
    }
    done = subprocess.run(
        [sys.executable, "-m", module, *words[module]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr.startswith(f"python -m {module} is now called llmbench")
    if module.endswith("token_files"):
        assert done.returncode == 0 and (tmp_path / "book.bin").stat().st_size == 32
    else:
        assert done.returncode == 2 and "--name does not apply" in done.stderr
