"""The rules of the house: notebooks and modules agree, rooms import downwards, training and
analysis stay apart.
"""

import ast
import configparser
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from notebooks import ROOT, guides, library_notebooks, read_notebook
from readme import readme_text
from rooms import heading, pages

NOTEBOOKS = library_notebooks()
WITH_TORCH = {"model", "train", "frameworks", "bench"}
DOORS = {
    "entrypoint",
    "callback",
    "train.__main__",
    "cli.__main__",
}  # names that people type, wherever the code behind them lives
BIN = Path(sys.executable).parent

# Notebooks with exported cells of more than 30 lines, and how many. Entries may only disappear.
LONG_CELLS: dict[str, int] = {}

# Modules of more than 400 lines. Entries may only disappear.
LONG_MODULES = []

# Where something else than the factors of a request is multiplied by a length of sequences, and
# what. Entries may only disappear.
SEQUENCES_BY_LENGTH = {
    "compare/audit/figures.py": "the batch that a published table claims",
    "importers/finish.py": "the sequences per step that a log states",
    "importers/results/ancestors.py": "the batch that a result states",
    "importers/results/optimum.py": "the batch of one device",
    "importers/results/tensorboard.py": "the samples of a step",
    "plan/predicted/step.py": "the same for thousands of layouts at once",
    "report/pages/layoutcost.py": "sequences that the page asks a plan for",
    "spec/named.py": "the sequences of a named request",
}
# Other names of global_tokens. Each is an alias for older users, or only read.
OTHER_NAMES = {
    ("analysis/rates.py", "global_batch_tokens"): "column of the views until November 2026",
    ("core/glossary/work.py", "global_batch_tokens"): "the same column, explained",
    (
        "cli/data_verbs.py",
        "tokens_per_step",
    ): "key of the printed JSON until November 2026",
    ("frameworks/callback.py", "step_tokens"): "what one step of a recorded loop counted",
    ("frameworks/recording.py", "step_tokens"): "the same, in a line of the recording",
    ("store/published/rules.py", "global_batch_tokens"): "column of the published tables",
    ("store/published/accounting.py", "global_batch_tokens"): "the same column",
    ("store/published/view.py", "global_batch_tokens"): "the same column",
}


def module_files() -> list[Path]:
    generated = {"_modidx.py", "__init__.py"}
    return sorted(p for p in (ROOT / "llmbench").rglob("*.py") if p.name not in generated)


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


def test_notebooks_and_modules_agree(tmp_path):
    """Export and clean change nothing: no edited, hand-made or stale module, no unclean
    notebook.
    """
    for name in ("nbs", "pyproject.toml", "README.md"):
        subprocess.run(["cp", "-r", ROOT / name, tmp_path], check=True)
    (tmp_path / "llmbench").mkdir()
    (tmp_path / "llmbench/__init__.py").write_text((ROOT / "llmbench/__init__.py").read_text())
    for command in ("nbdev-export", "nbdev-clean"):
        subprocess.run([BIN / command], cwd=tmp_path, check=True, capture_output=True)
    for folder in ("llmbench", "nbs"):
        names = ("__pycache__", ".ipynb_checkpoints", "py.typed", "templates", "constants.json")
        skip = [word for name in names for word in ("-x", name)]
        found = subprocess.run(
            ["diff", "-rq", *skip, ROOT / folder, tmp_path / folder], capture_output=True, text=True
        )
        assert found.returncode == 0, f"type make notebooks\n{found.stdout}"


def test_rooms_import_downwards_only():
    """The contract of .importlinter: layers, no cycles, no torch where nothing is trained, no
    tables where something is.
    """
    found = subprocess.run(
        [BIN / "lint-imports", "--config", ".importlinter", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout


def test_a_room_has_at_most_15_notebooks_and_there_are_at_most_13_rooms():
    folders = Counter(n.path.parent for n in NOTEBOOKS)
    assert max(folders.values()) <= 15, folders
    rooms = {n.module.split(".")[0] for n in NOTEBOOKS} - {
        "entrypoint",
        "callback",
        "bench",
    }  # two names, and what stays out of the wheel
    assert len(rooms) <= 13, rooms


def test_two_notebooks_of_one_folder_have_different_numbers():
    """The numbers are the order of reading and of imports, so none may be given twice."""
    numbers = Counter((n.path.parent, n.path.name[:2]) for n in NOTEBOOKS)
    twice = {number for number, found in numbers.items() if found > 1}
    assert not twice, sorted(str(n) for n in NOTEBOOKS if (n.path.parent, n.path.name[:2]) in twice)


def test_a_notebook_lies_in_the_room_that_it_exports_to():
    """nbs/30_train/strategies/20_ddp.ipynb exports llmbench.train.strategies.ddp."""
    for n in NOTEBOOKS:
        room, *parts = n.path.relative_to(ROOT / "nbs").with_suffix("").parts
        place = [room.partition("_")[2], *parts[:-1], parts[-1].partition("_")[2]]
        assert n.module in (".".join(place), *DOORS) and parts[-1][:2].isdecimal(), (
            f"{n} exports {n.module}"
        )


def test_a_guide_exports_nothing_and_stands_on_the_page_of_guides():
    """nbs/guides has examples for users: a title, a subtitle, and a line in its table each."""
    page = "".join(c.source for c in read_notebook(ROOT / "nbs/guides/index.ipynb").cells)
    assert len(guides()) >= 2
    for n in guides():
        title, subtitle = heading(n.path)
        assert title and subtitle and f"({n.path.name})" in page, n
        assert n.module is None and not any(c.exported for c in n.cells), n
        assert any("assert" in c.source for c in n.cells if c.runs), n


def test_all_but_training_imports_without_torch():
    modules = [
        f"llmbench.{n.module}"
        for n in NOTEBOOKS
        if n.module.split(".")[0] not in WITH_TORCH and n.module not in DOORS
    ]
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['deepspeed'] = None\nimport"
        f" {', '.join(modules)}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_drawing_starts_without_the_grammar_of_web_addresses(tmp_path):
    """The charts import Altair without a grammar that takes a second to compile and that JupyterLab
    installs; a module that imports Altair before them brings it back.
    """
    asked = tmp_path / "asked"
    (tmp_path / "rfc3987_syntax.py").write_text(f"open({str(asked)!r}, 'w').close()\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    for name, compiled in (("llmbench.report.build", False), ("altair", True)):
        subprocess.run([sys.executable, "-c", f"import {name}"], check=True, cwd=ROOT, env=env)
        assert asked.exists() is compiled, name


def test_what_the_run_sheets_import_is_there():
    """nbs/runs/*.ipynb export nothing, so that no module names a function that they lost."""
    lost = []
    for path in sorted((ROOT / "nbs/runs").glob("*.ipynb")):
        code = [c.source for c in read_notebook(path).cells if c.kind == "code"]
        for node in ast.walk(ast.parse("\n".join(code))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("llmbench"):
                module = importlib.import_module(node.module)
                lost += [
                    f"{path.name}: {node.module}.{a.name}"
                    for a in node.names
                    if not hasattr(module, a.name)
                ]
    assert not lost, lost


def test_ruff_finds_nothing_to_format_and_nothing_to_mend():
    # a cache would answer for a notebook that is as it was while the rules or the package changed
    for words in (["format", "--check", "--no-cache"], ["check", "--no-cache"]):
        found = subprocess.run(
            [BIN / "ruff", *words, "nbs", "tests"], cwd=ROOT, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stdout


def lines_of_texts(source: str) -> set[int]:
    """Lines that lie in a string and are no documentation: SQL, shell, an expression that no
    formatter may cut.
    """
    tree = ast.parse(source)
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [n.body[0] for n in ast.walk(tree) if isinstance(n, holders) and n.body]
    documentation = {id(n.value) for n in first if isinstance(n, ast.Expr)}
    texts = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.JoinedStr)
        or (isinstance(n, ast.Constant) and isinstance(n.value, str | bytes))
    ]
    return {
        line
        for n in texts
        if id(n) not in documentation
        for line in range(n.lineno, n.end_lineno + 1)
    }


def wide_lines(source: str) -> list[int]:
    """Numbers of the lines of code, comment or documentation with more than 100 columns."""
    long = {i for i, line in enumerate(source.splitlines(), 1) if len(line) > 100}
    return sorted(long - lines_of_texts(source)) if long else []


def test_a_wide_line_is_seen_and_a_wide_text_is_not():
    wide = "x" * 101
    assert wide_lines(f"{wide} = 1") == wide_lines(f"# {wide}") == wide_lines(f'"{wide}"') == [1]
    assert wide_lines(f'a = "{wide}"') == []


def test_lines_of_code_have_at_most_100_columns():
    sources = {f"{p.relative_to(ROOT)}": p.read_text() for p in (ROOT / "tests").glob("*.py")}
    for n in [*NOTEBOOKS, *guides()]:
        code = [c for c in n.cells if c.kind == "code"]
        sources |= {f"{n} cell {i}": c.source for i, c in enumerate(code)}
    wide = {name: found for name, source in sources.items() if (found := wide_lines(source))}
    assert not wide, wide


def test_no_function_over_50_lines():
    long = [
        f"{path.relative_to(ROOT)}:{f.name} {f.end_lineno - f.lineno + 1}"
        for path in module_files()
        for f in functions(ast.parse(path.read_text()))
        if f.end_lineno - f.lineno + 1 > 50
    ]
    assert not long, long


def code_lines(cell) -> int:
    """Lines of a code cell without its directives."""
    return sum(not line.startswith("#|") for line in cell.source.splitlines())


def test_exported_cells_have_at_most_30_lines():
    """LONG_CELLS names the exceptions; a notebook that has become shorter leaves the list."""
    long = {
        str(n): count
        for n in NOTEBOOKS
        if (count := sum(c.exported and code_lines(c) > 30 for c in n.cells))
    }
    assert long == LONG_CELLS, {
        k: long.get(k, 0) for k in long | LONG_CELLS if long.get(k) != LONG_CELLS.get(k)
    }


def test_modules_have_at_most_400_lines():
    """LONG_MODULES names the exceptions; a module that has become shorter leaves the list."""
    sizes = {
        f"{p.relative_to(ROOT / 'llmbench')}": len(p.read_text().splitlines())
        for p in module_files()
    }
    long = {name: size for name, size in sizes.items() if size > 400}
    assert set(long) == set(LONG_MODULES), {k: sizes.get(k) for k in set(long) ^ set(LONG_MODULES)}


def factors_of(node: ast.AST) -> list[str]:
    """The names of the factors of a product, or of the values in a list."""
    match node:
        case ast.BinOp(op=ast.Mult()):
            parts = [node.left, node.right]
        case ast.Tuple() | ast.List():
            parts = node.elts
        case ast.BoolOp():
            parts = node.values
        case ast.Subscript():
            parts = [node.value, node.slice]
        case ast.Call(func=ast.Attribute(attr="get")):
            parts = node.args[:1]
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            return [name.rpartition(".")[2].strip("_").lower()]
        case _:
            return []
    return [name for part in parts for name in factors_of(part)]


def step_products(source: str) -> list[int]:
    """Lines in which a length of sequences is multiplied by a number of sequences."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        called = isinstance(node, ast.Call) and "prod" in ast.unparse(node.func)
        names = set(factors_of(node)) if product else set()
        if called:
            names = {name for argument in node.args for name in factors_of(argument)}
        many = names & {"accum", "grad_accum", "dp", "sequences", "batch", "global_batch"}
        if names & {"seq_len", "sequence_length", "seq"} and many:
            lines.append(node.lineno)
    return sorted(set(lines))


def test_a_second_product_of_the_tokens_of_a_step_is_seen():
    bad = ("n = micro * accum * dp * seq_len", "n = b.accum * s['seq_len'] * dp")
    bad += (
        "n = math.prod([micro, accum, dp, spec.seq_len])",
        "n = sequences * facts['spec.seq_len']",
    )
    assert all(step_products(line) == [1] for line in bad)
    fine = (
        "rows = micro * seq_len",
        "resolve(batch, dp=dp, seq_len=seq_len)",
        "n = micro * accum * dp",
    )
    assert not any(map(step_products, fine))


def test_the_tokens_of_a_step_are_computed_once_and_have_one_name():
    """`global_tokens` from a parameter file to a chart; spec.batch multiplies it."""
    other = r"\b(global_batch_tokens|tokens_per_(?:optimizer_)?step|tokens_(?:of|in)_(?:a_)?step|(?:optimizer_)?step_tokens)\b"
    products, names = {}, set()
    for path in module_files():
        name, source = str(path.relative_to(ROOT / "llmbench")), path.read_text()
        if found := step_products(source):
            products[name] = found
        names |= {(name, word) for word in re.findall(other, source)}
    assert set(products) == set(SEQUENCES_BY_LENGTH), (products, "call spec.batch.global_tokens")
    assert names == set(OTHER_NAMES), names ^ set(OTHER_NAMES)


def test_a_public_class_has_a_name_of_its_own():
    """No two modules define a public class of the same name; private ones (`_Held`) may."""
    where: dict[str, list[str]] = {}
    for path in module_files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(f"{path.relative_to(ROOT / 'llmbench')}")
    shared = {name: modules for name, modules in where.items() if len(modules) > 1}
    assert len(where) > 50 and not shared, shared


def names_in(source: str) -> set[str]:
    """Every name that a piece of code reads, writes or imports."""
    nodes = list(ast.walk(ast.parse(source)))
    return (
        {n.id for n in nodes if isinstance(n, ast.Name)}
        | {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        | {n.name for n in nodes if isinstance(n, ast.alias)}
    )


def public_definitions(tree: ast.Module) -> set[str]:
    """Public functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")}


def named_in_examples() -> tuple[int, dict[str, list[str]]]:
    """The number of public definitions, and per notebook those that none of its own example or
    test cells names.
    """
    total, missing = 0, {}
    for n in NOTEBOOKS:
        defined, named = set(), set()
        for cell in (c for c in n.cells if c.kind == "code"):
            if cell.exported:
                defined |= public_definitions(ast.parse(cell.source))
            else:
                named |= names_in(cell.source)
        total += len(defined)
        if defined - named:
            missing[str(n)] = sorted(defined - named)
    return total, missing


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
        assert known[key] == value, (
            f"{key}: settings.ini has {value!r}, pyproject.toml {known[key]!r}"
        )
    import llmbench

    assert llmbench.__version__ == known["version"]


def test_readme_is_the_index_notebook():
    assert (ROOT / "README.md").read_text() == readme_text(), "type make notebooks"


def test_the_changelog_names_a_subject_once():
    leads = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [lead for lead, n in Counter(leads).items() if n > 1] == [] and len(leads) > 10


def test_tables_of_rooms_and_tests_are_true():
    """Each room has a page; its table of notebooks and imports, and the tables of CONTRIBUTING.md,
    are what is there.
    """
    stale = [
        str(path.relative_to(ROOT)) for path, text in pages().items() if path.read_text() != text
    ]
    assert not stale, f"type make notebooks: {stale}"


def test_examples_name_85_percent_of_the_public_definitions():
    """Each counts if an example or test cell of its own notebook names it."""
    total, missing = named_in_examples()
    named = total - sum(map(len, missing.values()))
    assert named >= 0.85 * total, (named, total, missing)


def test_budgets_are_printed(capsys):
    """Sizes and the share of examples are printed; nothing fails."""
    lengths = [
        f.end_lineno - f.lineno + 1
        for p in module_files()
        for f in functions(ast.parse(p.read_text()))
    ]
    sizes = {
        p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in module_files()
    }
    exported = shown = 0
    for n in NOTEBOOKS:
        for i, cell in enumerate(n.cells):
            if cell.exported and ("def " in cell.source or "class " in cell.source):
                after = [c for c in n.cells[i + 1 : i + 7] if c.kind == "code" and not c.exported][
                    :3
                ]
                exported, shown = (
                    exported + 1,
                    shown + any(c.has_output or "assert" in c.source for c in after),
                )
    total, missing = named_in_examples()
    named = total - sum(map(len, missing.values()))
    with capsys.disabled():
        sys.stdout.write(
            f"\n  {named} of {total} public definitions are named in an example of their notebook"
            f" ({named / total:.0%})"
        )
        sys.stdout.write(
            f"\n  {len(sizes)} modules, median {statistics.median(sizes.values()):.0f} lines, longest"
            f" {max(sizes.values())}\n  {len(lengths)} functions, median {statistics.median(lengths):.0f} lines, longest {max(lengths)}\n "
            " notebooks over 80 cells:"
            f" {[str(n) for n in NOTEBOOKS if len(n.cells) > 80] or 'none'}\n  {shown} of"
            f" {exported} exported cells are followed by an example ({shown / exported:.0%})\n"
        )
    assert lengths and exported


@pytest.mark.slow
def test_the_wheel_holds_every_module(tmp_path):
    """Build the wheel, unpack it elsewhere, import every module from there; the templates of the
    pages and the published tables are in it, the bench stays behind.
    """
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next(tmp_path.glob("llmbench-*.whl"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, tmp_path / "site"], check=True)
    assert not (tmp_path / "site/llmbench/bench").exists()
    templates = {p.name for p in (ROOT / "llmbench/report/templates").iterdir()}
    shipped = tmp_path / "site/llmbench/report/templates"
    assert templates and {p.name for p in shipped.iterdir()} == templates
    tables = {p.name for p in (ROOT / "data/published").glob("*.csv")}
    installed = next((tmp_path / "site").glob("*.data/data/share/llmbench/published"))
    assert tables and {p.name for p in installed.iterdir()} == tables
    modules = ", ".join(
        f"llmbench.{n.module}" for n in NOTEBOOKS if not n.module.startswith("bench.")
    )
    program = f"import {modules}, llmbench; assert 'site' in llmbench.__file__, llmbench.__file__"
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
    )


def test_stored_outputs_have_no_paths_of_a_machine():
    found = [
        f"{path.relative_to(ROOT)}: {match}"
        for path in sorted((ROOT / "nbs").rglob("*.ipynb"))
        for cell in json.loads(path.read_text())["cells"]
        for match in re.findall(r"/(?:tmp|root|home/\w+)/\S+", json.dumps(cell.get("outputs", [])))
    ]
    assert not found, found


def test_tests_wait_in_one_way():
    """A loop that sleeps is `waiting.until`, which has a deadline and a message."""
    found = [
        f"{path.name}:{loop.lineno}: take until of waiting.py"
        for path in (ROOT / "tests").glob("test_*.py")
        for loop in ast.walk(ast.parse(path.read_text()))
        if isinstance(loop, ast.While) and "time.sleep(" in ast.unparse(loop)
    ]
    assert not found, found


def test_what_the_wheel_takes_along_are_files():
    """A pattern that meets a folder, or nothing, stops the build of the wheel."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "data-files"
    ]
    for pattern in (p for group in patterns.values() for p in group):
        found = list(ROOT.glob(pattern))
        assert found and all(p.is_file() for p in found), (pattern, found)
