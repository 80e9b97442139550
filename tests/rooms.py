"""What the pages of the rooms and CONTRIBUTING.md say about notebooks and tests, written from the
notebooks and tests themselves.

Each folder of nbs/ has an index.ipynb: its first cell is written by hand, its table of notebooks
between two markers is written here, and so is the line of imports. CONTRIBUTING.md has the table of
rooms and the map of the tests.
"""

import ast
import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from notebooks import ROOT, Notebook, library_notebooks

NBS = ROOT / "nbs"
MEASURED = ROOT / "tests/slow_minutes.csv"  # pytest -m slow --minutes tests/test_x.py
BEGIN, END = "<!-- {}: written by make notebooks -->", "<!-- end of {} -->"


def heading(path: Path) -> tuple[str, str]:
    """Title and subtitle of a notebook: the first lines that begin with # and with >."""
    source = "".join(json.loads(path.read_text())["cells"][0]["source"])
    title = re.search(r"^# (.+)$", source, re.MULTILINE)
    subtitle = re.search(r"^> (.+)$", source, re.MULTILINE)
    name = path.relative_to(ROOT)
    assert title and subtitle, f"{name}: begin the first cell with '# name' and a line '> subtitle'"
    return title[1].strip(), subtitle[1].strip()


def room_folders() -> list[Path]:
    """The folders of library notebooks, rooms before their sub-rooms."""
    return sorted({n.path.parent for n in library_notebooks()})


def package(folder: Path) -> str:
    """nbs/30_train/strategies is train.strategies."""
    first, *rest = folder.relative_to(NBS).parts
    return ".".join([first.partition("_")[2], *rest])


def imported_rooms(notebook: Notebook, rooms: list[str]) -> set[str]:
    """The rooms that the exported cells of a notebook import from."""
    found = set()
    for cell in notebook.cells:
        for node in ast.walk(ast.parse(cell.source)) if cell.exported else ():
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                inside = [r for r in rooms if f"{name}.".startswith(f"llmbench.{r}.")]
                found |= {max(inside, key=len)} if inside else set()
    return found


@cache
def imports() -> dict[str, set[str]]:
    """For each room the other rooms that it imports from."""
    rooms = [package(f) for f in room_folders()]
    found = defaultdict(set)
    for notebook in library_notebooks():
        own = package(notebook.path.parent)
        found[own] |= imported_rooms(notebook, rooms) - {own}
    return found


def filled(text: str, name: str, content: str) -> str:
    """The text with new content between the two markers of a name."""
    begin, end = BEGIN.format(name), END.format(name)
    assert text.count(begin) == text.count(end) == 1, (
        f"the markers {begin!r} and {end!r} have to be there once"
    )
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def listed(rooms: set[str]) -> str:
    return ", ".join(f"`{r}`" for r in sorted(rooms)) or "nothing"


def notebook_table(folder: Path) -> str:
    """The notebooks of a room in their order, its sub-rooms after them, and what it imports
    from.
    """
    graph, own = imports(), package(folder)
    paths = sorted(folder.glob("[0-9]*.ipynb")) + sorted(folder.glob("*/index.ipynb"))
    rows = [
        (f"[{_shown(p, folder)}]({p.relative_to(folder).as_posix()})", heading(p)[1]) for p in paths
    ]
    users = {room for room, targets in graph.items() if own in targets}
    said = f"Imports from: {listed(graph[own])}. Imported by: {listed(users)}."
    return f"{said}\n\n{table(('notebook', 'what it is about'), rows)}"


def _shown(path: Path, folder: Path) -> str:
    return f"{path.parent.name}/" if path.name == "index.ipynb" else path.relative_to(folder).stem


def room_table() -> str:
    """One line per room, for CONTRIBUTING.md."""
    rows = []
    for folder in room_folders():
        name, count = folder.relative_to(ROOT).as_posix(), len(list(folder.glob("[0-9]*.ipynb")))
        rows.append(
            (
                f"[{name}]({name}/index.ipynb)",
                f"`llmbench.{package(folder)}`",
                str(count),
                heading(folder / "index.ipynb")[1],
            )
        )
    return table(("folder", "package", "notebooks", "what it is for"), rows)


def tests_of(path: Path) -> tuple[str, str]:
    """What a file of tests guards (the first paragraph of its docstring), and whether it is quick,
    slow or both.
    """
    tree = ast.parse(path.read_text())
    about = " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())
    tests = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name.startswith("test_")]
    all_slow = any(
        isinstance(n, ast.Assign)
        and "pytestmark" in ast.unparse(n.targets[0])
        and "slow" in ast.unparse(n.value)
        for n in tree.body
    )
    slow = [
        f for f in tests if all_slow or any("mark.slow" in ast.unparse(d) for d in f.decorator_list)
    ]
    assert about and tests, (
        f"{path.name}: a file of tests begins with a docstring that says what it guards"
    )
    return about, "slow" if len(slow) == len(tests) else "both" if slow else "quick"


def minutes() -> dict[str, str]:
    """How long the slow tests of a file took when they were measured last."""
    lines = MEASURED.read_text().splitlines()[1:] if MEASURED.exists() else []
    return dict(line.split(",") for line in lines)


def tests_table() -> str:
    """One line per file of tests, for CONTRIBUTING.md."""
    measured = minutes()
    rows = [
        (f"`{p.name}`", *tests_of(p), measured.get(p.name, ""))
        for p in sorted((ROOT / "tests").glob("test_*.py"))
    ]
    return table(("file", "what it guards", "runs", "minutes of the slow tests"), rows)


def pages() -> dict[Path, str]:
    """Every file that is written here, with the text that it should have."""
    found = {}
    for folder in room_folders():
        path = folder / "index.ipynb"
        assert path.exists(), (
            f"{folder.relative_to(ROOT)} has no index.ipynb; copy one of another room and say what this room is for"
        )
        notebook = json.loads(path.read_text())
        cell = next(
            c for c in notebook["cells"] if BEGIN.format("notebooks") in "".join(c["source"])
        )
        cell["source"] = filled(
            "".join(cell["source"]), "notebooks", notebook_table(folder)
        ).splitlines(keepends=True)
        found[path] = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    contributing = ROOT / "CONTRIBUTING.md"
    text = filled(contributing.read_text(), "rooms", room_table())
    return found | {contributing: filled(text, "tests", tests_table())}


def write() -> None:
    """Write every page anew that is stale."""
    for path, text in pages().items():
        if path.read_text() != text:
            path.write_text(text)
