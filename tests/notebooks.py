"""Read the project's notebooks: shared by the tests of the house and the tests that run them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIRECTIVE = re.compile(r"^#\|\s*(\w+)(?::?\s+(.*))?$")
NOT_RUN = {"notest", "cuda"}


@dataclass(frozen=True)
class Cell:
    """One code or markdown cell and its `#|` directives."""

    kind: str
    source: str
    directives: dict[str, str]
    has_output: bool

    @property
    def exported(self) -> bool:
        return "export" in self.directives or "exports" in self.directives

    @property
    def slow(self) -> bool:
        return "slow" in self.directives

    @property
    def runs(self) -> bool:
        return (
            self.kind == "code"
            and not NOT_RUN & set(self.directives)
            and self.directives.get("eval") != "false"
        )


@dataclass(frozen=True)
class Notebook:
    """A library notebook; `module` is the dotted name below llmbench that it exports to."""

    path: Path
    cells: tuple[Cell, ...]

    @property
    def module(self) -> str | None:
        return next(
            (c.directives["default_exp"] for c in self.cells if "default_exp" in c.directives), None
        )

    def __str__(self) -> str:
        return self.path.relative_to(ROOT / "nbs").with_suffix("").as_posix()


def _directives(source: str) -> dict[str, str]:
    found = {}
    for line in source.splitlines():
        if not (match := DIRECTIVE.match(line.strip())):
            break
        found[match[1]] = (match[2] or "").strip()
    return found


def read_notebook(path: Path) -> Notebook:
    cells = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        cells.append(
            Cell(cell["cell_type"], source, _directives(source), bool(cell.get("outputs")))
        )
    return Notebook(path, tuple(cells))


def library_notebooks() -> list[Notebook]:
    """Notebooks that export a module, in the order of their numbers."""
    found = [read_notebook(p) for p in sorted((ROOT / "nbs").rglob("[0-9]*.ipynb"))]
    return [n for n in found if n.module]


def guides() -> list[Notebook]:
    """Worked examples for users: they export nothing and run like every notebook."""
    return [read_notebook(p) for p in sorted((ROOT / "nbs" / "guides").glob("[0-9]*.ipynb"))]
