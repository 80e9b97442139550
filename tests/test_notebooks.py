"""Every notebook's examples and assertions, run against the exported package, each in a process of its own.

An exported cell is replaced by the module that it was exported to, so that what is tested (and counted by coverage)
is what users import. `nbdev-test` runs the same cells as they stand in the notebook; a test of the house asserts that
both are the same code.

The processes are forked from one that has imported the large libraries, and nothing of llmbench: importing torch a
hundred times is a quarter of the work otherwise.
"""

import importlib
import multiprocessing
import os
from pathlib import Path

import pytest
from notebooks import ROOT, library_notebooks, read_notebook

LIBRARIES = ("torch", "torch.distributed", "duckdb", "altair", "pydantic", "papermill", "yaml")
DEADLINE_S = 300


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    return context


@pytest.mark.parametrize("notebook", library_notebooks(), ids=str)
def test_notebook(notebook, processes, tmp_path):
    log = tmp_path / "log"
    process = processes.Process(target=run_alone, args=(notebook.path, log))
    process.start()
    process.join(DEADLINE_S)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0, f"exit code {process.exitcode}\n{log.read_text()[-6000:]}"


def run_alone(path: Path, log: Path) -> None:
    """Be the process of one notebook: its folder, its output, its cells."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.chdir(ROOT / "nbs")
    run_cells(read_notebook(path))


def run_cells(notebook) -> None:
    """Execute the cells of a notebook in order, in one namespace."""
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook.cells):
        if cell.exported:
            module = importlib.import_module(f"llmbench.{notebook.module}")
            names |= {k: v for k, v in vars(module).items() if not k.startswith("__")}
        elif cell.runs:
            exec(compile(cell.source, f"{notebook.path.name}[cell {number}]", "exec"), names)  # noqa: S102
