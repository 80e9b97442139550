"""llmbench outside its repository: the wheel in an empty environment, a new project, a study.

Nothing is downloaded: the environment sees the packages of this one, but not llmbench.
"""

import json
import subprocess
from pathlib import Path

import pytest
from installed import installed, outside
from notebooks import ROOT


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """The bin folder of an environment with the wheel."""
    return installed(tmp_path_factory.mktemp("installed"))


def types(path: Path, command: str, folder: Path, **more: str) -> subprocess.CompletedProcess:
    """A command line in a folder outside the clone."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=outside(path, OMP_NUM_THREADS="1", **more),
        capture_output=True,
        text=True,
    )


def test_the_wheel_has_every_source_of_the_site(path):
    share = path.parent / "share/llmbench/project"
    listed = subprocess.run(
        ["git", "ls-files", "reports", "nbs/runs", "starter"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.split()
    left_out = ("reports/published/", "reports/recorded/", "reports/images/", "nbs/runs/.notest")
    wanted = {name for name in listed if not name.startswith(left_out)}
    there = {p.relative_to(share).as_posix() for p in share.rglob("*") if p.is_file()}
    assert wanted and wanted <= there, sorted(wanted - there)


def test_a_project_outside_the_clone(path, tmp_path):
    """init, then verbs that train nothing; no module and no file of the clone is used."""
    done = types(path, "llmbench init mine", tmp_path)
    assert done.returncode == 0 and " files written" in done.stdout, done.stderr
    where = types(path, "python -c 'import llmbench; print(llmbench.__file__)'", tmp_path)
    assert where.stdout.startswith(str(path.parent)), where
    mine = tmp_path / "mine"
    done = types(path, "llmbench show params/studies/first.yaml", mine)
    assert done.returncode == 0 and "3 runs × 3 repeats" in done.stdout, done.stderr
    done = types(path, "llmbench init .", mine)
    assert done.returncode == 2 and "--force" in done.stderr and done.stderr.count("\n") == 1
    done = types(path, "llmbench init . --force --ci gitlab", mine)
    assert done.returncode == 0 and (mine / ".gitlab-ci.yml").is_file(), done.stderr
    done = types(path, "llmbench report", mine)
    assert done.returncode == 2 and "llmbench sweep params/studies/first.yaml" in done.stderr


# --- slow


@pytest.mark.slow
def test_a_site_without_a_project(path, tmp_path):
    """report, plots, winners, compare and query of a folder of run files, anywhere."""
    runs = ROOT / "reports/published/cpu-precision"
    done = types(path, f"llmbench report --results {runs} --out site", tmp_path)
    assert done.returncode == 0 and (tmp_path / "site/index.html").is_file(), done.stderr
    assert not (tmp_path / "reports").exists(), "nothing but what was asked for"
    done = types(path, f"llmbench winners --format json --results {runs}", tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr


@pytest.mark.slow
def test_a_study_from_init_to_the_site(path, tmp_path):
    """init, sweep of its study, winners, compare, query, report, and one run by papermill."""
    assert types(path, "llmbench init mine", tmp_path).returncode == 0
    mine = tmp_path / "mine"
    done = types(path, "llmbench sweep", mine)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([*mine.glob("results/first/*/run.json")]) == 9
    assert len([*mine.glob("results/first/**/*.ipynb")]) >= 3, "the executed sheets are kept"
    done = types(path, "llmbench winners --format markdown", mine)
    assert done.returncode == 0 and done.stdout.count("|") > 20, done.stderr
    done = types(path, "llmbench compare strategy=ddp strategy=fsdp --format json", mine)
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr
    done = types(path, 'llmbench query "SELECT count(*) AS n FROM runs" --format json', mine)
    assert json.loads(done.stdout) == [{"n": 9}], done.stderr
    done = types(path, "llmbench report", mine)
    assert done.returncode == 0 and (mine / "reports/_site/index.html").is_file(), done.stderr
    sheet = "nbs/runs/benchmark.ipynb out.ipynb -f params/cpu/ddp.yaml -p steps 6 -p warmup_steps 2"
    done = types(path, f"python -m papermill {sheet}", mine)
    assert done.returncode == 0 and "image/svg+xml" in (mine / "out.ipynb").read_text(), done.stderr
    assert [*mine.glob("results/adhoc/*/run.json")], "beside the others"
