"""The workflows, for pull requests and for a machine with a GPU: they hold only commands that
exist, and do in a shell what they say.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cyclopts import UnknownOptionError
from notebooks import ROOT

from llmbench.cli.main import build_app
from llmbench.core.files import load_settings
from llmbench.spec.params import is_study, read_yaml

FILE = ROOT / ".github/workflows/gpu-study.yml"
WORKFLOW = yaml.safe_load(FILE.read_text())
JOB = WORKFLOW["jobs"]["study"]
ASKED = WORKFLOW[True]["workflow_dispatch"]["inputs"]  # YAML 1.1 reads the key on as true


def scripts() -> list[str]:
    return [step["run"] for step in JOB["steps"] if "run" in step]


def commands(script: str) -> list[list[str]]:
    """The words of every call of llmbench, variables as they are by default."""
    known = {
        **{name.upper(): str(i["default"]) for name, i in ASKED.items()},
        "name": "ddp-w1",
        "PWD": "/project",
        "HOME": "/home/runner",
    }
    text = re.sub(r"\$\{?(\w+)\}?", lambda m: known.get(m[1], m[0]), script.replace("\\\n", " "))
    calls = [
        re.split(r"\s(?:\|\||&&|>>?|\|)\s", line)[0]
        for line in re.findall(r"^\s*llmbench .*$", text, re.MULTILINE)
    ]
    return [shlex.split(call)[1:] for call in calls]


def test_every_command_is_one_that_llmbench_has():
    said = [words for script in scripts() for words in commands(script)]
    assert {words[0] for words in said} == {
        "doctor",
        "sweep",
        "baseline",
        "query",
        "compare",
        "report",
    }
    for words in said:
        build_app().parse_args(words)
    with pytest.raises(UnknownOptionError, match="fail-if-slowr"):
        build_app().parse_args(["compare", "a", "--fail-if-slowr", "3%"])
    compared = next(words for words in said if words[0] == "compare")
    assert compared[compared.index("--fail-if-slower") + 1] == "3%" and "--baseline" in compared
    assert compared[compared.index("--min-detectable") + 1] == "10%"


def test_targets_and_files_that_it_names_exist():
    targets = re.findall(r"\bmake (\S+)", "\n".join(scripts()))
    assert targets and all(
        re.search(rf"^{re.escape(t)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for t in targets
    )
    assert is_study(read_yaml(ROOT / ASKED["study"]["default"]))


def test_nothing_but_a_person_starts_it_and_inputs_are_never_code():
    assert list(WORKFLOW[True]) == ["workflow_dispatch"] and WORKFLOW["permissions"] == {
        "contents": "read"
    }
    assert (
        JOB["runs-on"][0] == "self-hosted"
        and JOB["timeout-minutes"]
        and WORKFLOW["concurrency"]["cancel-in-progress"] is False
    )
    assert not any("${{" in script for script in scripts()), "an input in a command would be run"
    used = [step["uses"] for step in JOB["steps"] if "uses" in step]
    assert len(used) == 2 and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", u) for u in used)
    assert all(
        re.search(rf"{re.escape(u)} # v\d+\.\d+\.\d+$", FILE.read_text(), re.MULTILINE)
        for u in used
    ), "the version beside the commit"
    assert len(re.findall(r"secrets\.|token", FILE.read_text(), re.IGNORECASE)) == 0


# --- pull requests


REQUESTED = ROOT / ".github/workflows/pull-request.yml"
CHECKS = yaml.safe_load(REQUESTED.read_text())
COMPARE = CHECKS["jobs"]["compare"]
STEPS = {s["name"]: s["run"] for s in COMPARE["steps"] if "run" in s}


def words_of(program: str, job: dict = COMPARE) -> list[list[str]]:
    """The words of every call of a program in a job, variables as its env has them."""
    known = {**{k: str(v) for k, v in job["env"].items()}, "side": "base", "attempt": "1"}
    scripts = "\n".join(s["run"] for s in job["steps"] if "run" in s)
    text = re.sub(r"\$\{?(\w+)\}?", lambda m: known.get(m[1], f"/{m[1]}"), scripts)
    calls = re.findall(rf"^\s*\.venv/bin/{program} (.*)$", text, re.MULTILINE)
    return [shlex.split(re.split(r"\s>>\s", call)[0]) for call in calls]


def parameters_given(calls: list[list[str]], name: str) -> set[str]:
    """The parameters that the only call of papermill gives the sheet of this name, which has
    them.
    """
    [sheet] = calls
    assert sheet[0] == f"nbs/runs/{name}.ipynb" and (ROOT / sheet[0]).is_file()
    given = {name for flag, name in itertools.pairwise(sheet) if flag == "-p"}
    cells = json.loads((ROOT / sheet[0]).read_text())["cells"]
    asked = next(c for c in cells if "parameters" in c["metadata"].get("tags", []))
    assert given <= set(re.findall(r"^(\w+) = ", "".join(asked["source"]), re.MULTILINE))
    return given


def test_a_pull_request_trains_the_default_study_as_notebooks():
    job = CHECKS["jobs"]["study"]
    given = parameters_given(words_of("papermill", job), "interleaved")
    assert given == {"study_file", "attempt", "results"}
    assert job["env"]["STUDY"] == load_settings().get("study", "default")
    (words,) = words_of("llmbench", job)
    build_app().parse_args(words)


def test_a_pull_request_is_tested_and_compared_by_commands_that_exist():
    said = words_of("llmbench")
    assert [words[0] for words in said] == ["compare", "report"]
    for words in said:
        build_app().parse_args(words)
    assert said[0][said[0].index("--fail-if-slower") + 1] == COMPARE["env"]["LIMIT"] == "5%"
    assert said[0][said[0].index("--min-detectable") + 1] == COMPARE["env"]["LEAST"] == "20%"
    assert parameters_given(words_of("papermill"), "benchmark") == {"study", "attempt", "results"}
    assert not is_study(read_yaml(ROOT / COMPARE["env"]["REQUEST"]))


def test_the_targets_of_a_pull_request_exist():
    scripts = [s["run"] for job in CHECKS["jobs"].values() for s in job["steps"] if "run" in s]
    targets = re.findall(r"\bmake (?:-C \w+ )?(\S+)", "\n".join(scripts))
    known = (ROOT / "Makefile").read_text()
    assert targets == ["test", ".venv/.base", ".venv/.base", ".venv/.deepspeed"]
    assert all(re.search(rf"^{re.escape(t)}:", known, re.MULTILINE) for t in targets)


def test_a_pull_request_may_read_and_nothing_else():
    text = REQUESTED.read_text()
    assert list(CHECKS[True]) == ["pull_request"] and CHECKS["permissions"] == {"contents": "read"}
    jobs = CHECKS["jobs"].values()
    assert all(job["timeout-minutes"] and "self-hosted" not in job["runs-on"] for job in jobs)
    scripts = [s["run"] for job in jobs for s in job["steps"] if "run" in s]
    assert not any("${{" in script for script in scripts), "an input in a command would be run"
    steps = [s for job in jobs for s in job["steps"] if "uses" in s]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", s["uses"]) for s in steps)
    assert {s["uses"] for s in steps} == {s["uses"] for s in JOB["steps"] if "uses" in s}
    checkouts = [s for s in steps if "checkout" in s["uses"]]
    assert len(checkouts) == 4 and all(s["with"]["persist-credentials"] is False for s in checkouts)
    assert len(re.findall(r"secrets\.|token", text, re.IGNORECASE)) == 0


# --- slow


@pytest.mark.slow
@pytest.mark.parametrize("file", [FILE, REQUESTED], ids=lambda f: f.stem)
def test_it_holds_to_the_schema_of_workflows(file):
    """The schema that check-jsonschema brings along; actionlint too, where it is on the PATH."""
    pytest.importorskip("check_jsonschema", reason="pip install 'llmbench[cluster]'")
    check = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    done = subprocess.run([*check, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if shutil.which("actionlint"):
        done = subprocess.run(["actionlint", str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    """A step as a runner starts it: bash -eo pipefail, in the checkout."""
    env = (
        os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder / "home"),
        }
        | variables
    )
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
    )


def made_faster(run: dict, times: float) -> None:
    """The steps of a run file, and the window that holds them, take so many times less."""
    for place in (run["steps"], *run["ranks"]):
        if "time_s" in place:
            place["time_s"] = [t and t / times for t in place["time_s"]]
    for rank in run["ranks"]:
        rank["measured_wall_s"] /= times


def made_steady(folder: Path) -> None:
    """Steps of 0.1 s, with 1 % between the runs of a side: what a gate says of the run files below
    does not depend on what else this machine does.
    """
    for number, file in enumerate(sorted(folder.glob("results/*/*/run.json"))):
        run = json.loads(file.read_text())
        shift, count = 0.001 * (number % 3 - 1), len(run["steps"]["time_s"])
        times = [0.1 + shift + 0.0001 * (i % 3) for i in range(count)]
        for place in (run["steps"], *(r for r in run["ranks"] if "time_s" in r)):
            place["time_s"] = times
        for rank in run["ranks"]:
            rank["measured_wall_s"] = sum(times[run["spec"]["warmup_steps"] :])
        file.write_text(json.dumps(run))


@pytest.mark.slow
def test_its_steps_do_what_they_say(tmp_path):
    """Train, keep, compare (as fast: 0; against a baseline made forty times as fast: 1), site: the
    file's own steps, with a study for a CPU.
    """
    steps = {step.get("name"): step["run"] for step in JOB["steps"] if "run" in step}
    (tmp_path / "home").mkdir()
    (tmp_path / "settings.ini").write_text("")
    shutil.copytree(
        ROOT / "reports", tmp_path / "reports", ignore=shutil.ignore_patterns("_site", "published")
    )
    study = {
        "study": "ci",
        "title": "CI",
        "repeats": 3,
        "baseline": {"strategy": "single"},
        "matrix": [{"strategy": ["single"]}],
        "base": {
            "model": "gpt-tiny",
            "hardware": "cpu",
            "world_size": 1,
            "seq_len": 64,
            "batch": {"micro": 2, "accum": 1},
            "steps": 12,
            "warmup_steps": 4,
        },
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    given = {
        "STUDY": "study.yaml",
        "BASELINE": "main",
        "LEAST": "99%",
        "LIMIT": "90%",  # more than other work on the machine makes of two equal trainings
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    for name in ("Train", "Keep as the baseline"):
        if name == "Keep as the baseline":
            made_steady(tmp_path)
        done = shell(steps[name], tmp_path, **given)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    done = shell(steps["Compare with the baseline"], tmp_path, **given)
    assert done.returncode == 1 and "not newer ones" in done.stderr, (
        "the runs of the baseline itself"
    )
    shutil.rmtree(tmp_path / "results")  # the next call of the workflow has a checkout of its own
    for name in ("Train", "Compare with the baseline", "Build the site"):
        if name == "Compare with the baseline":
            made_steady(tmp_path)
        done = shell(steps[name], tmp_path, **given)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    assert (tmp_path / "site/index.html").exists() and "single" in (
        tmp_path / "summary.md"
    ).read_text()
    kept = tmp_path / "home/llmbench-baselines/main.json"
    fast = json.loads(kept.read_text())
    for run in fast["runs"]:
        made_faster(run, 40)
    kept.write_text(json.dumps(fast))
    done = shell(steps["Compare with the baseline"], tmp_path, **given | {"LIMIT": "3%"})
    assert done.returncode == 1, "surely slower than a baseline that is forty times as fast"


@pytest.mark.slow
def test_the_steps_of_a_pull_request_do_what_they_say(tmp_path):
    """Train base and head, which are the same here: as fast: 0; a base made forty times as fast: 1;
    the site is built.
    """
    for side in ("base", "head"):
        (tmp_path / side).symlink_to(ROOT)
    (tmp_path / "home").mkdir()
    given = {k: str(v) for k, v in COMPARE["env"].items()}
    given |= {
        "REPEATS": "3",
        "LIMIT": "50%",
        "LEAST": "99%",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    for name in ("Train", "Compare with the base", "Build the site"):
        if name == "Compare with the base":
            made_steady(tmp_path)
        done = shell(STEPS[name], tmp_path, **given)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    assert (tmp_path / "site/index.html").exists() and len([*tmp_path.glob("sheets/*.ipynb")]) == 6
    assert "study=head" in (tmp_path / "summary.md").read_text()
    done = shell(STEPS["Compare with the base"], tmp_path, **given | {"LEAST": "0.01%"})
    assert done.returncode == 3, "three repeats cannot show a difference of 0.01 %"
    for file in tmp_path.glob("results/base/*/run.json"):
        run = json.loads(file.read_text())
        made_faster(run, 40)
        file.write_text(json.dumps(run))
    done = shell(STEPS["Compare with the base"], tmp_path, **given)
    assert done.returncode == 1, "surely slower than a base that is forty times as fast"


@pytest.mark.slow
def test_the_notebooks_of_the_study_lead_to_its_site(tmp_path):
    """The steps of the job with a study of two runs: two notebooks, four runs, a verdict."""
    steps = {s["name"]: s["run"] for s in CHECKS["jobs"]["study"]["steps"] if "run" in s}
    for name in (".venv", "nbs", "reports", "settings.ini", "llmbench"):
        (tmp_path / name).symlink_to(ROOT / name)
    study = {
        "study": "batch",
        "repeats": 2,
        "interleaved": True,
        "matrix": [{"optimizer.fused": [False, True]}],
        "base": {
            "model": "gpt-tiny",
            "strategy": "single",
            "world_size": 1,
            "seq_len": 32,
            "batch": {"micro": 2, "accum": 1},
            "optimizer": {"lr": 0.001},
            "steps": 6,
            "warmup_steps": 2,
        },
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    for name in ("Train each repeat as a notebook", "Build the site of the study"):
        done = shell(steps[name], tmp_path, STUDY="study.yaml", REPEATS="2")
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    for attempt in (1, 2):
        text = (tmp_path / f"sheets/repeat-{attempt}.ipynb").read_text()
        assert "image/svg+xml" in text and text.count("step 6/6") == 2
    assert len([*tmp_path.glob("results/batch/*/run.json")]) == 4
    assert (tmp_path / "site/index.html").exists()
