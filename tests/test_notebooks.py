"""Every notebook's examples and assertions, run against the exported package.

An exported cell is replaced by the module that it was exported to, so that what is tested (and counted by coverage)
is what users import. `nbdev-test` runs the same cells as they stand in the notebook; a test of the house asserts that
both are the same code.
"""

import importlib
import os

import pytest
from notebooks import ROOT, library_notebooks


@pytest.mark.parametrize("notebook", library_notebooks(), ids=str)
def test_notebook(notebook, monkeypatch):
    monkeypatch.chdir(ROOT / "nbs")
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(ROOT))
    names = {"__name__": "__main__"}
    package = f"llmbench.{notebook.module}"
    for number, cell in enumerate(notebook.cells):
        if cell.exported:
            names |= {k: v for k, v in vars(importlib.import_module(package)).items() if not k.startswith("__")}
        elif cell.runs:
            exec(compile(cell.source, f"{notebook.path.name}[cell {number}]", "exec"), names)  # noqa: S102
