"""Every notebook's examples and assertions, run against the exported package, each in a process of
its own.

An exported cell is replaced by the module that it was exported to, so that what is tested (and
counted by coverage) is what users import. `nbdev-test` runs the same cells as they stand in the
notebook; a test of the house asserts that both are the same code.

The processes are forked from one that has imported the large libraries, and the modules of llmbench
that load most others: to import torch, its compiler and them anew takes six seconds a notebook.
Where coverage counts, it has nothing of llmbench, so that the lines of an import count.
"""

import multiprocessing
import os
from pathlib import Path

import pytest
from conftest import FOLLOWED
from executed import run_alone
from notebooks import guides, library_notebooks

LIBRARIES = ("torch", "torch.distributed", "duckdb", "altair", "pydantic", "papermill", "yaml")
LIBRARIES += ("torch._dynamo", "torch.distributed.fsdp", "scipy.optimize")
OWN = ("llmbench.train.worker", "llmbench.report.build")
DEADLINE_S = 300
SLOW_DEADLINE_S = 1200


@pytest.fixture(scope="module")
def processes():
    """Starts the processes of notebooks; their server starts with the first, so that coverage
    follows it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*LIBRARIES, *(() if FOLLOWED else OWN)])
    with pytest.MonkeyPatch.context() as patch:
        if FOLLOWED:
            patch.setenv("COVERAGE_PROCESS_CONFIG", FOLLOWED)
        first = context.Process(target=os.getpid)
        first.start()
        first.join()
    return context


@pytest.mark.parametrize("notebook", [*library_notebooks(), *guides()], ids=str)
def test_notebook(notebook, processes, tmp_path):
    check(notebook, processes, tmp_path / "log", slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "notebook",
    [n for n in [*library_notebooks(), *guides()] if any(c.slow for c in n.cells)],
    ids=str,
)
def test_notebook_with_its_slow_cells(notebook, processes, tmp_path):
    check(notebook, processes, tmp_path / "log", slow=True)


def check(notebook, processes, log: Path, *, slow: bool) -> None:
    """Run a notebook in a process of its own: what one does to its process (a limit of memory)
    reaches no other.
    """
    process = processes.Process(target=run_alone, args=(notebook.path, log, slow))
    process.start()
    process.join(SLOW_DEADLINE_S if slow else DEADLINE_S)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0, f"exit code {process.exitcode}\n{log.read_text()[-6000:]}"
