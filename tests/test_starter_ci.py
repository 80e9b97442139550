"""The workflows that `llmbench init` writes for GitHub and GitLab: checked by their schemas, and
run line by line in a project outside the clone.

Nothing is downloaded: where a workflow installs packages, pip takes the wheel of this clone alone,
and the packages that it needs are those of this environment.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cyclopts import UnknownOptionError
from installed import installed, outside

from llmbench.cli.main import build_app
from llmbench.spec.project.contents import project_files

GITHUB, GITLAB = ".github/workflows/benchmark.yml", ".gitlab-ci.yml"
SHORT = """
study: short
title: Two runs of a few steps
repeats: 2
baseline: {strategy: ddp}
base:
  {model: gpt-tiny, hardware: cpu, seq_len: 64, batch: {micro: 2, global_tokens: 256}, steps: 8,
  warmup_steps: 2}
matrix:
  - {strategy: [ddp, fsdp], world_size: 2}
"""


def github() -> dict:
    return yaml.safe_load(project_files("github")[GITHUB])


def gitlab() -> dict:
    return yaml.safe_load(project_files("gitlab")[GITLAB])


def steps_of(kind: str) -> tuple[dict[str, str], list[str]]:
    """The variables and the scripts of a workflow, in order."""
    if kind == "github":
        ((job,),) = [github()["jobs"].values()]
        return github()["env"], [step["run"] for step in job["steps"] if "run" in step]
    return gitlab()["variables"], gitlab()["benchmark"]["script"]


def calls(kind: str) -> list[list[str]]:
    """The words of every call of llmbench."""
    variables, scripts = steps_of(kind)
    found = re.findall(r"^\.venv/bin/llmbench (.*)$", "\n".join(scripts), re.MULTILINE)
    texts = [re.sub(r"\$(\w+)", lambda m: variables[m[1]], re.split(r" >>? ", t)[0]) for t in found]
    return [shlex.split(text) for text in texts]


@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_every_command_is_one_that_llmbench_has(kind):
    said = calls(kind)
    assert [words[0] for words in said] == ["show", "sweep", "winners", "report"]
    for words in said:
        build_app().parse_args(words)
    with pytest.raises(UnknownOptionError, match="reslts"):
        build_app().parse_args(["winners", "--reslts", "results"])
    assert steps_of(kind)[0]["STUDY"] in project_files(kind), "the study is a file of the project"


def test_both_do_the_same():
    assert calls("github") == calls("gitlab")


def test_github_may_read_and_nothing_else_and_actions_are_pinned():
    text = project_files("github")[GITHUB]
    assert github()["permissions"] == {"contents": "read"}
    used = re.findall(r"uses: (\S+)", text)
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in used)
    assert not any("${{" in script for script in steps_of("github")[1]), "an input is never code"


# --- slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, name, schema", [("github", GITHUB, "github-workflows"), ("gitlab", GITLAB, "gitlab-ci")]
)
def test_it_holds_to_the_schema_of_its_host(kind, name, schema, tmp_path):
    """The schemas that check-jsonschema brings along; a misspelt key is refused."""
    pytest.importorskip("check_jsonschema", reason="pip install 'llmbench[cluster]'")
    text = project_files(kind)[name]
    wrong = text.replace("runs-on:", "runs-onn:").replace("expire_in:", "expires_in:")
    assert wrong != text
    for content, refused in ((text, False), (wrong, True)):
        (tmp_path / "file.yml").write_text(content)
        check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
        done = subprocess.run([*check, tmp_path / "file.yml"], capture_output=True, text=True)
        assert bool(done.returncode) == refused, done.stdout + done.stderr


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """The bin folder of an environment with the wheel."""
    return installed(tmp_path_factory.mktemp("installed"))


def project(folder: Path, path: Path, kind: str) -> Path:
    """A project with a wheel, as the first lines of its workflow ask for."""
    command = [path / "llmbench", "init", "mine", "--ci", kind]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=outside(path))
    mine = folder / "mine"
    (mine / "wheels").mkdir()
    (wheel,) = (path.parents[1] / "wheels").glob("*.whl")
    os.link(wheel, mine / "wheels" / wheel.name)
    return mine


def run_steps(kind: str, mine: Path, path: Path, **more: str) -> list[str]:
    """Every script of a workflow as a runner starts it, in the project; the output of each."""
    variables, scripts = steps_of(kind)
    known = outside(path, OMP_NUM_THREADS="1", PIP_NO_DEPS="1", **variables | more)
    told = []
    for script in scripts:
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(command, cwd=mine, env=known, capture_output=True, text=True)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        told.append(done.stdout)
        for place in mine.glob(".venv/lib/python3*/site-packages"):
            (place / "others.pth").write_text(f"{path.parent / 'packages'}\n")
    return told


@pytest.mark.slow
def test_the_steps_for_github_train_the_first_study(path, tmp_path):
    mine = project(tmp_path, path, "github")
    summary = tmp_path / "summary.md"
    told = run_steps("github", mine, path, GITHUB_STEP_SUMMARY=str(summary))
    assert "3 runs × 3 repeats" in told[1] and "9 of 9 runs are ok" in told[2]
    assert summary.read_text().startswith("| study | category |")
    assert len([*mine.glob("results/*/*/run.json")]) == 9
    assert (mine / "site/index.html").is_file()


@pytest.mark.slow
def test_the_lines_for_gitlab_train_a_study_that_a_variable_names(path, tmp_path):
    mine = project(tmp_path, path, "gitlab")
    (mine / "params/studies/short.yaml").write_text(SHORT)
    run_steps("gitlab", mine, path, STUDY="params/studies/short.yaml")
    kept = gitlab()["benchmark"]["artifacts"]["paths"]
    assert all([*mine.glob(name)] for name in kept), "every artifact is there"
    assert len([*mine.glob("results/short/*/run.json")]) == 4
    assert (mine / "winners.md").read_text().startswith("| study | category |")
