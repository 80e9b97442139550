"""The rules of the house: notebooks and modules agree, the order holds, the two halves stay apart."""

import ast
import configparser
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from notebooks import ROOT, imported_modules, library_notebooks
from readme import readme_text

NOTEBOOKS = library_notebooks()
ANALYSIS_STARTS, ANALYSIS = 50, {"duckdb", "altair", "vl_convert", "pypandoc"}
BIN = Path(sys.executable).parent


def number(notebook) -> str:
    return notebook.path.stem.split("_")[0]


def module_files() -> list[Path]:
    generated = {"_modidx.py", "__init__.py"}
    return sorted(p for p in (ROOT / "llmbench").rglob("*.py") if p.name not in generated)


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


def test_notebooks_and_modules_agree(tmp_path):
    """Export and clean change nothing: no edited, hand-made or stale module, no unclean notebook."""
    for name in ("nbs", "pyproject.toml", "README.md"):
        subprocess.run(["cp", "-r", ROOT / name, tmp_path], check=True)
    (tmp_path / "llmbench").mkdir()
    (tmp_path / "llmbench/__init__.py").write_text((ROOT / "llmbench/__init__.py").read_text())
    for command in ("nbdev-export", "nbdev-clean"):
        subprocess.run([BIN / command], cwd=tmp_path, check=True, capture_output=True)
    for folder in ("llmbench", "nbs"):
        skip = ["-x", "__pycache__", "-x", ".ipynb_checkpoints", "-x", "py.typed"]
        found = subprocess.run(["diff", "-rq", *skip, ROOT / folder, tmp_path / folder], capture_output=True, text=True)
        assert found.returncode == 0, f"type make notebooks\n{found.stdout}"


def test_notebooks_import_only_smaller_numbers():
    order = {n.module: number(n) for n in NOTEBOOKS}
    wrong = [
        f"{n.path.name} imports {name} ({order[name]})"
        for n in NOTEBOOKS
        for cell in n.cells
        if cell.exported
        for name in imported_modules(cell.source)
        if name in order and order[name] >= number(n)
    ]
    assert not wrong, wrong


def _top_imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return found | {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module and not n.level}


def test_two_halves_meet_only_in_files():
    for n in NOTEBOOKS:
        path = ROOT / "llmbench" / (n.module.replace(".", "/") + ".py")
        used = _top_imports(path)
        if int(number(n)[:2]) >= ANALYSIS_STARTS:
            assert "torch" not in used, f"{n.path.name} is analysis and imports torch"
        elif int(number(n)[:2]) < 30:
            assert not used & ANALYSIS, f"{n.path.name} is training and imports {used & ANALYSIS}"


def test_analysis_imports_without_torch():
    modules = [f"llmbench.{n.module}" for n in NOTEBOOKS if int(number(n)[:2]) >= 30 or number(n) < "10z"]  # experts and models need torch
    program = f"import sys; sys.modules['torch'] = None; sys.modules['deepspeed'] = None\nimport {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_no_function_over_50_lines():
    long = [
        f"{path.relative_to(ROOT)}:{f.name} {f.end_lineno - f.lineno + 1}"
        for path in module_files()
        for f in functions(ast.parse(path.read_text()))
        if f.end_lineno - f.lineno + 1 > 50
    ]
    assert not long, long


def test_public_functions_have_types_and_docstrings():
    bare = []
    for path in module_files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                if not ast.get_docstring(node) or node.returns is None:
                    bare.append(f"{path.relative_to(ROOT)}:{node.name}")
    assert not bare, bare


def test_no_star_import_no_bare_except_no_print():
    found = []
    for path in module_files():
        for node in ast.walk(ast.parse(path.read_text())):
            star = isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names)
            bare = isinstance(node, ast.ExceptHandler) and node.type is None
            printed = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            if star or bare or printed:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, found


def test_settings_and_pyproject_agree():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "settings.ini")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = project["project"] | project["tool"]["nbdev"]
    for key, value in settings.defaults().items():
        assert known[key] == value, f"{key}: settings.ini has {value!r}, pyproject.toml {known[key]!r}"
    import llmbench

    assert llmbench.__version__ == known["version"]


def test_readme_is_the_index_notebook():
    assert (ROOT / "README.md").read_text() == readme_text(), "type make notebooks"


def test_budgets_are_printed(capsys):
    """A mirror, not a whip: sizes and demonstration ratio stand in the log, nothing fails."""
    lengths = [f.end_lineno - f.lineno + 1 for p in module_files() for f in functions(ast.parse(p.read_text()))]
    sizes = {p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in module_files()}
    exported = shown = 0
    for n in NOTEBOOKS:
        for i, cell in enumerate(n.cells):
            if cell.exported and ("def " in cell.source or "class " in cell.source):
                after = [c for c in n.cells[i + 1 : i + 7] if c.kind == "code" and not c.exported][:3]
                exported, shown = exported + 1, shown + any(c.has_output or "assert" in c.source for c in after)
    with capsys.disabled():
        sys.stdout.write(
            f"\n  {len(sizes)} modules, median {statistics.median(sizes.values()):.0f} lines; over 250: "
            f"{ {k: v for k, v in sizes.items() if v > 250} or 'none'}\n"
            f"  {len(lengths)} functions, median {statistics.median(lengths):.0f} lines, longest {max(lengths)}\n"
            f"  notebooks over 80 cells: {[n.path.name for n in NOTEBOOKS if len(n.cells) > 80] or 'none'}\n"
            f"  {shown} of {exported} exported cells are followed by an example ({shown / exported:.0%})\n"
        )
    assert lengths and exported


@pytest.mark.slow
def test_the_wheel_holds_every_module(tmp_path):
    """Build the wheel, unpack it elsewhere, import every module from there."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next(tmp_path.glob("llmbench-*.whl"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, tmp_path / "site"], check=True)
    modules = ", ".join(f"llmbench.{n.module}" for n in NOTEBOOKS)
    program = f"import {modules}, llmbench; assert 'site' in llmbench.__file__, llmbench.__file__"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""})
