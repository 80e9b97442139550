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
from test_workflow import made_steady

from llmbench.cli.main import build_app
from llmbench.spec.project.contents import project_files

GITHUB, GITLAB = ".github/workflows/benchmark.yml", ".gitlab-ci.yml"
GATE = ".github/workflows/gate.yml"
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


def gate_of(kind: str) -> tuple[dict[str, str], list[str]]:
    """The variables and the scripts of the gate, in order."""
    if kind == "gitlab":
        return gitlab()["variables"] | gitlab()["gate"]["variables"], gitlab()["gate"]["script"]
    gate = yaml.safe_load(project_files("github")[GATE])
    variables = {name: str(value) for name, value in gate["env"].items()}
    return variables, [step["run"] for step in gate["jobs"]["gate"]["steps"] if "run" in step]


def calls(kind: str, of=steps_of) -> list[list[str]]:
    """The words of every call of llmbench."""
    variables, scripts = of(kind)
    variables = {"side": "head", "attempt": "1", "folder": "/work"} | variables
    found = re.findall(r"^ *\.venv/bin/llmbench (.*)$", "\n".join(scripts), re.MULTILINE)
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
    hosts = ("github", "gitlab")
    trained, compared = zip(*(calls(kind, gate_of) for kind in hosts), strict=True)
    assert trained[0] == trained[1]
    assert compared[0][:-1] == compared[1][:-1], "GitHub compares from the folder of the head"
    github_has, gitlab_has = (gate_of(kind)[0] for kind in hosts)
    assert all(github_has[k] == gitlab_has[k] for k in ("REQUEST", "REPEATS", "LIMIT", "LEAST"))


@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_the_gate_is_one(kind):
    """It trains what the project has, and its exit code is that of a comparison with a limit."""
    run, compare = calls(kind, gate_of)
    for words in (run, compare):
        build_app().parse_args(words)
    assert run[:2] == ["run", "params/cpu/ddp.yaml"] and run[1] in project_files(kind)
    assert compare[:3] == ["compare", "study=head", "study=base"]
    assert "--fail-if-slower" in compare and "--min-detectable" in compare


@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_a_gate_without_a_base_says_so_and_a_misspelt_request_fails(kind, tmp_path):
    """The request that adds the project has nothing to be compared with; later ones have."""
    (look,) = [s for s in gate_of(kind)[1] if "Not compared" in s]
    head, base = tmp_path / ("head" if kind == "github" else "."), tmp_path / "base"
    said = tmp_path / ("summary.md" if kind == "github" else "comparison.md")
    known = {"REQUEST": "a.yaml", "PATH": os.environ["PATH"], "GITHUB_STEP_SUMMARY": str(said)}
    known["GITHUB_OUTPUT"] = str(tmp_path / "out")

    def looked() -> subprocess.CompletedProcess:
        command = ["bash", "-ec", look + "\necho goes on"]
        return subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True)

    missing = looked()
    assert missing.returncode == 1 and "neither base nor head has a.yaml" in missing.stderr
    for folder, compared in ((head, False), (base, True)):
        folder.mkdir(exist_ok=True)
        (folder / "a.yaml").write_text("model: gpt-tiny\n")
        found = looked()
        assert found.returncode == 0 and ("Not compared" in found.stdout) != compared
        went_on = (tmp_path / "out").exists() if kind == "github" else "goes on" in found.stdout
        assert went_on == compared
    assert said.read_text().count("Not compared: the base has no a.yaml") == 1


@pytest.mark.parametrize("wanted", ["Set up", "Train", "Compare with the base"])
def test_github_goes_on_only_with_a_base(wanted):
    steps = yaml.safe_load(project_files("github")[GATE])["jobs"]["gate"]["steps"]
    (step,) = [s for s in steps if s.get("name") == wanted]
    assert step["if"] == "${{ steps.base.outputs.found }}"


def test_github_may_read_and_nothing_else_and_actions_are_pinned():
    for name in (GITHUB, GATE):
        text = project_files("github")[name]
        assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
        used = re.findall(r"uses: (\S+)", text)
        assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in used)
    scripts = (*steps_of("github")[1], *gate_of("github")[1])
    assert not any("${{" in script for script in scripts), "an input is never code"


# --- slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, name, schema",
    [
        ("github", GITHUB, "github-workflows"),
        ("github", GATE, "github-workflows"),
        ("gitlab", GITLAB, "gitlab-ci"),
    ],
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


def run_steps(kind: str, mine: Path, path: Path, of=steps_of, **more: str) -> list[str]:
    """Every script of a workflow as a runner starts it, in the project; the output of each."""
    variables, scripts = of(kind)
    known = outside(path, OMP_NUM_THREADS="1", PIP_NO_DEPS="1", **variables | more)
    told = []
    for script in scripts:
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(command, cwd=mine, env=known, capture_output=True, text=True)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        told.append(done.stdout)
        for place in mine.glob("**/.venv/lib/python3*/site-packages"):
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


# A gate that lets pass what two short repeats show, and one that cannot.
LENIENT = {"REQUEST": "params/cpu/short.yaml", "REPEATS": "2", "LIMIT": "95%", "LEAST": "99%"}
REQUEST = """
{model: gpt-tiny, strategy: ddp, world_size: 2, hardware: cpu, seq_len: 64, steps: 8,
 warmup_steps: 2, batch: {micro: 2, global_tokens: 256}}
"""


def gated(kind: str, mine: Path, path: Path, **more: str) -> str:
    """Run a gate that passes, then its last line alone with a demand that no repeats meet; what
    the comparison said. The step times are made steady in between: other tests may run beside.
    """
    told = mine / ("summary.md" if kind == "github" else "comparison.md")
    more |= {"GITHUB_STEP_SUMMARY": str(told), "GITHUB_OUTPUT": str(mine / "output")}
    run_steps(kind, mine, path, lambda kind: (LENIENT, gate_of(kind)[1][:-1]), **LENIENT, **more)
    for side in ("base", "head"):
        assert len([*mine.glob(f"results/{side}/*/run.json")]) == 2
    made_steady(mine)
    last = ["bash", "-ec", gate_of(kind)[1][-1]]
    for least, code in (("99%", 0), ("0.0001%", 3)):
        known = outside(path, **LENIENT | {"LEAST": least} | more)
        assert subprocess.run(last, cwd=mine, env=known).returncode == code
    return told.read_text()


@pytest.mark.slow
def test_the_gate_for_github_compares_the_head_with_its_base(path, tmp_path):
    for side in ("base", "head"):
        project(tmp_path, path, "github").rename(tmp_path / side)
        (tmp_path / side / "params/cpu/short.yaml").write_text(REQUEST)
    assert "study=head" in gated("github", tmp_path, path)


@pytest.mark.slow
def test_the_gate_for_gitlab_compares_the_head_with_its_base(path, tmp_path):
    mine = project(tmp_path, path, "gitlab")
    (mine / "params/cpu/short.yaml").write_text(REQUEST)
    named = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run([*named, *words], cwd=mine, check=True, capture_output=True)
    subprocess.run(["git", "clone", "-q", mine.as_uri(), "clone"], cwd=tmp_path, check=True)
    base = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(base, cwd=mine, check=True, capture_output=True, text=True).stdout
    said = gated("gitlab", tmp_path / "clone", path, CI_MERGE_REQUEST_DIFF_BASE_SHA=commit.strip())
    assert "study=head" in said
