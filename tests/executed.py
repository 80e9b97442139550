"""The process of one notebook. What it imports is imported for each of them: nothing that looks at
all notebooks, and no pytest.
"""

import ast
import importlib
import os
from pathlib import Path
from traceback import walk_tb

from notebooks import read_notebook


def run_alone(path: Path, log: Path, slow: bool) -> None:
    """Be the process of one notebook: its folder, its output, its cells."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.chdir(path.parent)
    if os.environ.get("COVER") != "all":
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    run_cells(read_notebook(path), slow)


def run_cells(notebook, slow: bool) -> None:
    """Execute the cells of a notebook in order, in one namespace; those marked `#| slow` only if
    asked.
    """
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook.cells):
        if cell.exported:
            module = importlib.import_module(f"llmbench.{notebook.module}")
            names |= {k: v for k, v in vars(module).items() if not k.startswith("__")}
        elif cell.runs and (slow or not cell.slow):
            file = f"{notebook.path.name}[cell {number}]"
            try:
                exec(compile(cell.source, file, "exec"), names)
            except Exception as error:
                error.add_note(failed_statement(error, file, cell.source))
                raise


def failed_statement(error: Exception, file: str, source: str) -> str:
    """The statement of a cell that raised; a traceback cannot show it, because the cell is no
    file.
    """
    lines = [at for frame, at in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    if not lines:
        return source
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= lines[-1] <= node.end_lineno
    ]
    inner = min(around, key=lambda node: node.end_lineno - node.lineno)
    return "\n".join(source.splitlines()[inner.lineno - 1 : inner.end_lineno])
