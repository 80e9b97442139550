"""The workflow for a machine with a GPU: it says only commands that exist, and does in a shell what it says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from notebooks import ROOT

from llmbench.cli.main import build_parser
from llmbench.core.errors import RequestError
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
        build_parser().parse_args(words)
    with pytest.raises(RequestError, match="fail-if-slowr"):
        build_parser().parse_args(["compare", "a", "--fail-if-slowr", "3%"])
    compared = next(words for words in said if words[0] == "compare")
    assert compared[compared.index("--fail-if-slower") + 1] == "3%" and "--baseline" in compared


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


# --- slow
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_holds_to_the_schema_of_workflows():
    """The schema that check-jsonschema brings along; actionlint too, where it is on the PATH."""
    pytest.importorskip("check_jsonschema", reason="pip install 'llmbench[cluster]'")
    check = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    done = subprocess.run([*check, str(FILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if shutil.which("actionlint"):
        done = subprocess.run(["actionlint", str(FILE)], capture_output=True, text=True)
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
        "LIMIT": "50%",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    for name in ("Train", "Keep as the baseline", "Compare with the baseline", "Build the site"):
        done = shell(steps[name], tmp_path, **given)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    assert (tmp_path / "site/index.html").exists() and "single" in (
        tmp_path / "summary.md"
    ).read_text()
    kept = tmp_path / "home/llmbench-baselines/main.json"
    fast = re.sub(
        r'"time_s":\[([^\]]*)\]',
        lambda m: (
            '"time_s":['
            + ",".join(str(float(t) / 40) if t != "null" else t for t in m[1].split(","))
            + "]"
        ),
        kept.read_text(),
    )
    kept.write_text(fast)
    done = shell(steps["Compare with the baseline"], tmp_path, **given | {"LIMIT": "3%"})
    assert done.returncode == 1, "surely slower than a baseline that is forty times as fast"
