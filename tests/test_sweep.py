"A study end to end: real runs through the run sheet, skipped, repeated, failed and interrupted."

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from llmbench.core.records import read_run
from llmbench.core.schema import Status

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow

BASE = (
    "{model: gpt-tiny, seq_len: 32, batch: {micro: 1, global_tokens: 64}, steps: %d, warmup_steps:"
    " 1, timeouts: {run_s: 300, collective_s: 60}}"
)
TWO = f"""
study: two
title: Two runs
base: {BASE % 4}
matrix:
  - {{strategy: single, world_size: 1}}
  - {{strategy: ddp, world_size: 2}}
"""
ONE_DIVERGES = f"""
study: mixed
base: {BASE % 4}
matrix:
  - {{strategy: single, world_size: 1, name: wild, optimizer: [{{lr: 1.0e+18, clip_norm: null}}]}}
  - {{strategy: zero1, world_size: 1, hardware: mi300x}}
  - {{strategy: single, world_size: 1}}
"""
LONG = f"""
study: long
base: {(BASE % 100_000).replace("run_s: 300", "run_s: 7200")}
matrix:
  - {{strategy: ddp, world_size: 2}}
  - {{strategy: single, world_size: 1, steps: 4}}
"""


def command(verb, file, results, *more):
    return [sys.executable, "-m", "llmbench.cli", verb, str(file), "--results", str(results), *more]


def llmbench(verb, file, results, *more):
    return subprocess.run(
        command(verb, file, results, *more), cwd=ROOT, capture_output=True, text=True, timeout=400
    )


def study_file(folder, text):
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def runs_of(folder):
    return {path.parent.name: read_run(path) for path in sorted(folder.glob("*/run.json"))}


def test_a_study_is_run_once_and_repeated_by_force(tmp_path):
    file, results = study_file(tmp_path, TWO), tmp_path / "results"
    first = llmbench("sweep", file, results)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "2 of 2 runs are ok" in first.stdout and "[2/2] ddp-w2 #1 ok" in first.stderr
    runs = runs_of(results / "two")
    assert json.loads((results / "two" / "study.json").read_text())["runs"] == [
        *sorted(runs, reverse=True)
    ]
    for name, run in runs.items():
        assert run.run_id == name and len(run.steps.loss) == 4
        notebook = (results / "two" / name / "run.ipynb").read_text()
        assert "image/svg+xml" in notebook and "step 4/4" in notebook and "tokens/s" in notebook
        assert run.env.command == f"llmbench run two/{name}/spec.yaml --attempt 1 --force"

    before = {p: p.stat().st_mtime_ns for p in results.rglob("run.json")}
    second = llmbench("sweep", file, results)
    assert second.returncode == 0 and second.stdout.count("finished before") == 2
    assert before == {p: p.stat().st_mtime_ns for p in results.rglob("run.json")}, (
        "finished runs are left alone"
    )

    third = llmbench("sweep", file, results, "--force")
    assert third.returncode == 0 and "finished before" not in third.stdout
    assert all(p.stat().st_mtime_ns != before[p] for p in before), "every run is new"
    left = {p.name for p in (results / "two").iterdir()}
    assert left == {*runs, "study.json", ".lock"}, "no half results are left"


def test_one_failing_run_does_not_stop_the_rest(tmp_path):
    file, results = study_file(tmp_path, ONE_DIVERGES), tmp_path / "results"
    done = llmbench("sweep", file, results)
    assert done.returncode == 1
    statuses = [
        run.status
        for _, run in sorted(runs_of(results / "mixed").items(), key=lambda item: item[0])
    ]
    assert sorted(statuses) == [Status.diverged, Status.ok, Status.refused]
    assert "1 of 3 runs are ok, 2 failed" in done.stdout and ": refused: " in done.stdout
    (wild,) = (results / "mixed").glob("*.wild.*")
    assert read_run(wild).steps.loss[0] is not None, "the steps before are kept"
    assert "diverged" in (wild / "run.ipynb").read_text(), "a failed run leaves a whole notebook"

    again = llmbench("sweep", file, results)
    assert again.returncode == 1, "a study with failed runs stays failed"
    assert again.stdout.count("finished before") == 2, (
        "ok and diverged are answers; the refused one is asked again"
    )


def steps_written(results):
    return any(b'"step"' in p.read_bytes() for p in results.glob("long/.partial/*/rank-000.jsonl"))


def processes_of(results):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"llmbench.train" in line and str(results).encode() in line:
            found.append(entry.name)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_leaves_a_state_from_which_the_same_command_goes_on(tmp_path):
    file, results = study_file(tmp_path, LONG), tmp_path / "results"
    started = subprocess.Popen(
        command("sweep", file, results),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell's background jobs ignore it
    )
    until(
        lambda: steps_written(results),
        300,
        process=started,
        message=lambda: started.poll() is not None and started.communicate(),
    )
    os.kill(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=120)
    assert started.returncode == 1 and "interrupted; repeat the command to continue" in out, (
        out + err
    )
    assert "Traceback" not in err
    (run,) = runs_of(results / "long").values()
    assert run.status == Status.cancelled and run.steps.loss, "what was measured is kept"
    assert (results / "long" / run.run_id / "run.ipynb").exists()
    assert processes_of(results) == [], "no rank is left behind"
    assert "not reached" in out

    file.write_text(LONG.replace("steps: 100000", "steps: 5"))
    again = llmbench("sweep", file, results)
    assert again.returncode == 0 and "2 of 2 runs are ok" in again.stdout, (
        again.stdout + again.stderr
    )


def test_plain_papermill_runs_the_sheet_and_fails_when_the_run_fails(tmp_path):
    parameters = tmp_path / "run.yaml"
    results = f"results: {tmp_path / 'results'}\n"
    plain = [
        sys.executable,
        "-m",
        "papermill",
        "nbs/runs/benchmark.ipynb",
        str(tmp_path / "out.ipynb"),
        "-f",
        str(parameters),
    ]
    asked = (
        "model: gpt-tiny\nstrategy: ddp\nworld_size: 2\nseq_len: 32\nbatch: {micro: 1}\nsteps:"
        " 4\nwarmup_steps: 1\n"
    )

    parameters.write_text(asked + results)
    good = subprocess.run(plain, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert good.returncode == 0, good.stderr
    (run,) = runs_of(tmp_path / "results" / "adhoc").values()
    assert run.status == Status.ok and "image/svg+xml" in (tmp_path / "out.ipynb").read_text()

    parameters.write_text(asked + results + "optimizer: {lr: 1.0e+18, clip_norm: null}\n")
    bad = subprocess.run(plain, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert bad.returncode == 1 and "is diverged" in bad.stderr

    parameters.write_text(asked + results + "stpes: 9\n")
    wrong = subprocess.run(plain, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert wrong.returncode == 1 and "did you mean steps" in wrong.stderr
    assert len(runs_of(tmp_path / "results" / "adhoc")) == 2, "a wrong request starts nothing"


SHOWN = f"""
study: shown
interleaved: true
repeats: 2
base: {(BASE % 8).replace("global_tokens: 64", "global_tokens: 32")}
matrix:
  - {{strategy: single, world_size: 1, name: a}}
  - {{strategy: single, world_size: 1, name: b}}
"""


def test_repeats_are_added_until_a_difference_can_be_shown(tmp_path):
    file, results = study_file(tmp_path, SHOWN), tmp_path / "results"
    first = llmbench("sweep", file, results)
    again = f"type llmbench sweep {file} --results {results} --detect 3"
    # two repeats beside other work may differ by half, and no number of repeats is enough then
    restless = "it takes more than 1,000 repeats"
    assert first.returncode == 0 and (again in first.stderr) != (restless in first.stderr), first

    more = llmbench("sweep", file, results, "--detect", "0.01", "--most-repeats", "4")
    assert more.returncode == 0, more
    assert "repeat 4 of at most 4 follows" in more.stderr and "8 of 8 runs are ok" in more.stdout
    record = json.loads((results / "shown" / "study.json").read_text())
    assert (record["repeats"], record["detect_pct"], len(record["runs"])) == (4, 0.01, 8)

    again = llmbench("sweep", file, results)  # it remembers, and trains nothing
    assert again.stdout.count("finished before") == 8, again


OF_AN_IMAGE = """
import importlib.metadata, re, sys
from pathlib import Path

locked = re.findall(r"^([A-Za-z0-9_.-]+)==", Path("docker/requirements.cpu.lock").read_text(), re.M)
locked = {re.sub(r"[-_.]+", "-", name).lower() for name in [*locked, "llmbench", "torch"]}
here = importlib.metadata.packages_distributions()
missing = {
    module
    for module, names in here.items()
    if not any(re.sub(r"[-_.]+", "-", name).lower() in locked for name in names)
}


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


assert {"orjson", "duckdb", "papermill", "altair"} <= missing and "torch" not in missing
sys.meta_path.insert(0, Missing())
from llmbench.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_sweep_without_notebooks_needs_only_what_an_image_has(tmp_path):
    """With the packages of docker/requirements.cpu.lock alone: trained, repeated until a difference
    can be shown, and reported with speeds.
    """
    file, results = study_file(tmp_path, SHOWN), tmp_path / "results"
    words = ["sweep", str(file), "--direct", "--results", str(results), "--detect", "0.01"]
    done = subprocess.run(
        [sys.executable, "-c", OF_AN_IMAGE, *words, "--most-repeats", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0 and "6 of 6 runs are ok" in done.stdout, done
    assert "repeat 3 of at most 3 follows" in done.stderr and "tokens/s" in done.stdout, done
