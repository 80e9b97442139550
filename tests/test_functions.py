"""llmbench from Python, in a project of its own: its eight functions and their page."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installed import installed, outside
from notebooks import ROOT

import llmbench

ELSEWHERE = """
study: on-mi300x
base: {model: gpt-tiny, hardware: mi300x, seq_len: 64, batch: {micro: 2}, steps: 6}
matrix:
  - {strategy: [ddp, fsdp], world_size: 2}
"""
EXAMPLES = """
import doctest, sys, llmbench
from llmbench.cli.adopting import functions
found = doctest.testmod(functions, extraglobs={"llmbench": llmbench}, report=True)
sys.exit(found.failed or found.attempted < 8)
"""
PAGE = """
import doctest, sys
found = doctest.testfile(sys.argv[1], module_relative=False)
sys.exit(found.failed or found.attempted < 12)
"""
IMPORT = """
import sys, time
before = set(sys.modules)
began = time.perf_counter()
import llmbench
print(1e3 * (time.perf_counter() - began), *sorted(set(sys.modules) - before))
"""


def python(program: str, folder: Path, *words: str, **how) -> subprocess.CompletedProcess:
    command = [how.pop("executable", sys.executable), "-c", program, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, **how)


def project(folder: Path, path: Path = Path(sys.executable).parent) -> Path:
    """A new project, as `llmbench init` writes it."""
    command = [path / "llmbench", "init", "mine", "--ci", "none"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "mine"


def test_the_examples_of_the_functions(tmp_path):
    """Every docstring as a doctest, beside the runs of a published study."""
    mine = project(tmp_path)
    shutil.copytree(ROOT / "reports/published/cpu-quickstart", mine / "results/cpu-quickstart")
    (mine / "params/studies/on-mi300x.yaml").write_text(ELSEWHERE)
    done = python(EXAMPLES, mine)
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_llmbench_is_quick():
    """Nothing but the package itself is read, and its eight names are still there."""
    times = []
    for _ in range(3):
        took_ms, *modules = python(IMPORT, ROOT).stdout.split()
        times.append(float(took_ms))
        assert modules == ["llmbench"]
    assert min(times) < 50
    assert len(llmbench.__all__) == 8 and set(llmbench.__all__) <= set(dir(llmbench))
    with pytest.raises(AttributeError, match="no attribute 'train_all'"):
        llmbench.train_all  # noqa: B018


def test_the_page_has_every_function_and_asking_needs_no_torch(tmp_path):
    page = (ROOT / "docs/python.md").read_text()
    assert all(f"`{name}(" in page and f"llmbench.{name}(" in page for name in llmbench.__all__)
    program = (
        "import sys, llmbench; print(llmbench.query('SELECT count(*) > 0 AS any FROM published'));"
        "assert 'torch' not in sys.modules"
    )
    done = python(program, tmp_path)
    assert done.stdout.strip() == "[{'any': True}]", done.stderr


# --- slow


@pytest.mark.slow
def test_the_page_on_python_from_the_wheel(tmp_path):
    """docs/python.md as it stands: training, a study, questions, a plan and the site."""
    path = installed(tmp_path / "installed")
    mine = project(tmp_path, path)
    words = {"executable": path / "python", "env": outside(path, OMP_NUM_THREADS="1")}
    done = python(PAGE, mine, str(ROOT / "docs/python.md"), **words)
    assert done.returncode == 0, done.stdout + done.stderr
