"""Every notebook's examples and assertions, run against the exported package, each in a process of its own.

An exported cell is replaced by the module that it was exported to, so that what is tested (and counted by coverage)
is what users import. `nbdev-test` runs the same cells as they stand in the notebook; a test of the house asserts that
both are the same code.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from notebooks import ROOT, library_notebooks, read_notebook


@pytest.mark.parametrize("notebook", library_notebooks(), ids=str)
def test_notebook(notebook):
    done = subprocess.run([sys.executable, __file__, notebook.path], cwd=ROOT / "nbs", capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def run_cells(notebook) -> None:
    """Execute the cells of a notebook in order, in one namespace."""
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook.cells):
        if cell.exported:
            module = importlib.import_module(f"llmbench.{notebook.module}")
            names |= {k: v for k, v in vars(module).items() if not k.startswith("__")}
        elif cell.runs:
            exec(compile(cell.source, f"{notebook.path.name}[cell {number}]", "exec"), names)  # noqa: S102


if __name__ == "__main__":
    run_cells(read_notebook(Path(sys.argv[1])))
