"""The site on GitHub Pages, and the examples for GitLab: commands that exist, rights that are
needed, and lines that do in a shell what they say.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from notebooks import ROOT
from test_workflow import made_faster, made_steady, parameters_given, shell

from llmbench.cli.main import build_app
from llmbench.report.publishing.edition import check_published, known_editions

PAGES_FILE, GITLAB_FILE = ROOT / ".github/workflows/pages.yml", ROOT / "docs/gitlab-ci.yml"
PAGES, GITLAB = (yaml.safe_load(file.read_text()) for file in (PAGES_FILE, GITLAB_FILE))
STEPS = {s["name"]: s["run"] for s in PAGES["jobs"]["publish"]["steps"] if "run" in s}
SCRIPTS = {"github": list(STEPS.values())}
SCRIPTS |= {job: GITLAB[job]["script"] for job in ("compare", "pages")}


def words_of(program: str, lines: list[str]) -> list[list[str]]:
    """The words of every call of a program; variables and what a shell computes are given words."""
    text = re.sub(r"\$\{?\w+[^}\"]*\}|\$\([^)]*\)", "word", "\n".join(lines))
    text = re.sub(
        r"\$(\w+)", lambda m: {"side": "base", "URL": "https://a.example/"}.get(m[1], "3%"), text
    )
    calls = re.findall(rf"^\s*\.venv/bin/{program} (.*)$", text, re.MULTILINE)
    return [shlex.split(re.split(r"\s>>?\s", call)[0]) for call in calls]


@pytest.mark.parametrize("where", SCRIPTS)
def test_every_command_and_target_exists(where):
    said = words_of("llmbench", SCRIPTS[where])
    assert [words[0] for words in said] == {"compare": ["report", "compare"]}.get(
        where, ["publish", "publish"]
    )
    for words in said:
        build_app().parse_args(words)
    targets = re.findall(r"\bmake (?:-C \w+ )?(\S+)", "\n".join(SCRIPTS[where]))
    assert targets and set(targets) == {".venv/.base"}


def test_the_gate_of_gitlab_is_that_of_github():
    theirs = yaml.safe_load((ROOT / ".github/workflows/pull-request.yml").read_text())
    theirs = {k: str(v) for k, v in theirs["jobs"]["compare"]["env"].items()}
    assert GITLAB["compare"]["variables"] == theirs
    given = parameters_given(words_of("papermill", SCRIPTS["compare"]), "benchmark")
    assert given == {"study", "attempt", "results"}


def test_pages_have_the_rights_that_they_need_and_inputs_are_never_code():
    jobs = PAGES["jobs"]
    assert list(PAGES[True]) == ["workflow_dispatch"] and PAGES["permissions"] == {}
    assert jobs["publish"]["permissions"] == {"contents": "write"}
    assert jobs["deploy"]["permissions"] == {"pages": "write", "id-token": "write"}
    assert not any("${{" in script for script in STEPS.values())
    used = [s["uses"] for job in jobs.values() for s in job["steps"] if "uses" in s]
    text = PAGES_FILE.read_text()
    assert len(used) == 4 and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", u) for u in used)
    assert all(re.search(rf"{re.escape(u)} # v\d+\.\d+\.\d+$", text, re.MULTILINE) for u in used)
    first, kept = (s for s in jobs["publish"]["steps"] if "checkout" in s.get("uses", ""))
    assert first["with"] == {"persist-credentials": False}, "only the branch is pushed to"
    assert kept["with"] == {"ref": "editions", "path": "kept"}


# --- slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "file,schema", [(PAGES_FILE, "github-workflows"), (GITLAB_FILE, "gitlab-ci")]
)
def test_it_holds_to_its_schema(file, schema, tmp_path):
    pytest.importorskip("check_jsonschema", reason="pip install 'llmbench[cluster]'")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    if schema == "gitlab-ci":
        check += ["--data-transform", "gitlab-ci"]
    done = subprocess.run([*check, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "ci.yml").write_text(file.read_text().replace("timeout", "tiemout"))
    done = subprocess.run([*check, str(tmp_path / "ci.yml")], capture_output=True, text=True)
    assert done.returncode == 1 and "tiemout" in done.stdout, "a wrong key is seen"


def git(*words: str, folder: Path) -> str:
    named = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    done = subprocess.run(
        ["git", *named, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def typed(lines: list[str], folder: Path, **given: str) -> list[int]:
    """Exit codes of the lines of a job. Its environments are those of this project: make would
    download them.
    """
    codes = []
    for line in lines:
        if found := re.fullmatch(r"make (?:-C (\w+) )?\.venv/\.base", line.strip()):
            (folder / (found[1] or ".") / ".venv").symlink_to(ROOT / ".venv")
            continue
        done = shell(line, folder, **given)
        codes.append(done.returncode)
        assert done.returncode in (0, 1, 3), f"{line}: {done.stdout}{done.stderr}"
    return codes


@pytest.fixture
def project(tmp_path) -> Path:
    """A clone of this project, as a runner has it, and a home."""
    (tmp_path / "home").mkdir()
    git("clone", "--quiet", f"file://{ROOT}", "project", folder=tmp_path)
    return tmp_path / "project"


@pytest.mark.slow
def test_the_gate_of_gitlab_does_what_it_says(project, tmp_path):
    """As fast as its base: 0; a base made forty times as fast: 1; what cannot be shown: 3."""
    given = GITLAB["compare"]["variables"] | {"REPEATS": "3", "LIMIT": "50%", "LEAST": "99%"}
    given["CI_MERGE_REQUEST_DIFF_BASE_SHA"] = git("rev-parse", "HEAD", folder=project)
    *train, gate = SCRIPTS["compare"]
    assert set(typed(train, project, **given)) == {0}
    made_steady(project)
    assert typed([gate], project, **given) == [0]
    assert "study=head" in (project / "comparison.md").read_text()
    assert (project / "site/index.html").is_file() and (project / "base/nbs").is_dir()
    assert len([*project.glob("sheets/*.ipynb")]) == 6
    assert typed([gate], project, **given | {"LEAST": "0.01%"}) == [3]
    for file in project.glob("results/base/*/run.json"):
        run = json.loads(file.read_text())
        made_faster(run, 40)
        file.write_text(json.dumps(run))
    assert typed([gate], project, **given) == [1]


@pytest.mark.slow
def test_pages_of_gitlab_keep_the_editions_of_the_cache(project):
    given = {"CI_PAGES_URL": "https://example.org/bench"}
    assert set(typed(SCRIPTS["pages"], project, **given, CI_PIPELINE_IID="1")) == {0}
    assert set(typed(SCRIPTS["pages"][1:], project, **given, CI_PIPELINE_IID="2")) == {0}
    assert [e["edition"][-2:] for e in known_editions(project / "public")] == [".2", ".1"]
    assert "<loc>https://example.org/bench/latest/index.html" in (
        (project / "public/sitemap.xml").read_text()
    )
    page = project / "public/latest/index.html"
    page.write_text(page.read_text() + "<!-- -->")
    assert typed(SCRIPTS["pages"][2:], project) == [1], "a changed page is not published"


@pytest.mark.slow
def test_pages_of_github_are_kept_on_their_branch(project, tmp_path):
    """The steps with a repository that can be pushed to: two editions, both on the branch."""
    origin = tmp_path / "origin.git"
    git("init", "--quiet", "--bare", "--initial-branch=editions", str(origin), folder=tmp_path)
    given = {"ADDRESS": "https://example.org/bench/", "EDITION": ""}
    for number in ("1", "2"):
        git("clone", "--quiet", f"file://{origin}", "kept", folder=project)
        if number == "1":
            git("commit", "-q", "--allow-empty", "-m", "Keep", folder=project / "kept")
        else:
            given["EDITION"] = "second"
        for name, step in STEPS.items():
            lines = [step] if name != "Set up" or number == "1" else []
            assert set(typed(lines, project, **given, GITHUB_RUN_NUMBER=number)) <= {0}, name
        (project / "kept").rename(project / f"kept-{number}")
    git("clone", "--quiet", f"file://{origin}", "seen", folder=tmp_path)
    assert check_published(tmp_path / "seen/public") == []
    first, second = (e["edition"] for e in reversed(known_editions(tmp_path / "seen/public")))
    assert second == "second" and re.fullmatch(r"\d{4}-\d\d-\d\d\.1", first)
    assert not [p for p in (tmp_path / "seen").iterdir() if p.name not in ("public", ".git")]
