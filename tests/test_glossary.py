"""The glossary has every column, field and heading; each entry is used; importing it is cheap."""

import ast
import importlib
import json
import re
import subprocess
import sys

from notebooks import ROOT, library_notebooks

from llmbench.analysis.rules.kinds import schema_fields
from llmbench.core.glossary.table import (
    DEFINED,
    ENTRIES,
    TOPICS,
    column_entry,
    field_entry,
    heading_entry,
)
from llmbench.core.schema import json_schema
from llmbench.report.glossary import notebook_of
from llmbench.store.database import open_store
from llmbench.store.published.view import PUBLISHED_COLUMNS

PARTS_OF_A_STEP = ROOT / "llmbench/compare/explained/parts.py"
PAGE_PLAN = ROOT / "llmbench/report/templates/plan_page.js"
COLUMN_MAKERS = {"Column", "text_column", "number_column", "_count", "_ms", "_loss_column"}


def view_columns(folder) -> list[tuple[str, str]]:
    found = open_store(folder).execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'main' AND table_catalog = current_database()"
    )
    return found.fetchall() + [("published", name) for name in PUBLISHED_COLUMNS]


def missing(find, *given: tuple[str, ...]) -> list[str]:
    """What the glossary does not have, by name."""
    found = []
    for one in given:
        try:
            find(*one)
        except KeyError:
            found.append(".".join(one))
    return found


def words(node: ast.expr) -> str | None:
    """A heading as it stands in the code; what a name fills in is `plain`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else None for p in node.values)
        return "".join("\0" if p is None else p for p in parts)
    return None


def written_headings() -> dict[str, str]:
    """The headings in the code of the pages, with the notebook of each: first arguments of columns,
    and first rows of pipe tables.
    """
    found = {}
    for path in sorted((ROOT / "llmbench/report").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if not name or not node.args:
                continue
            heads = node.args[:1] if name in COLUMN_MAKERS else []
            if name == "pipe_table" and isinstance(node.args[0], ast.List):
                first = node.args[0].elts[0]
                heads = first.elts if isinstance(first, ast.Tuple) else []
            for head in map(words, heads):
                if head:
                    found[f"{head} (ms)" if name == "_ms" else head] = path.name
    return found


def test_every_column_of_the_views_is_in_the_glossary(tmp_path):
    columns = view_columns(tmp_path)
    assert len(columns) > 150 and {"runs", "steps", "groups", "ranks"} <= {v for v, _ in columns}
    assert not missing(column_entry, *columns)


def test_every_field_of_the_run_file_is_in_the_glossary():
    assert not missing(field_entry, *((path,) for path in schema_fields()))


def test_what_is_not_in_the_glossary_is_named():
    assert missing(column_entry, ("runs", "furlongs")) == ["runs.furlongs"]
    assert missing(field_entry, ("spec.furlongs",), ("seq_len_",)) == ["spec.furlongs", "seq_len_"]
    assert missing(heading_entry, ("Furlongs (ms)",)) == ["Furlongs (ms)"]


def test_every_heading_in_the_code_of_the_pages_is_in_the_glossary():
    found = [h for h in written_headings() if not re.fullmatch(r"\0+( \(.*\))?", h)]
    assert len(found) > 90
    unknown = missing(heading_entry, *((h.replace("\0", "plain"),) for h in found))
    assert not unknown


def test_every_entry_is_computed_by_a_function_of_a_notebook():
    notebooks = {str(n) for n in library_notebooks()}
    for entry in ENTRIES:
        module, _, name = entry.computed.rpartition(".")
        computed = getattr(importlib.import_module(f"llmbench.{module}"), name)
        assert computed.__module__ == f"llmbench.{module}", f"{entry}: say where it is written"
        assert notebook_of(module) in notebooks


def test_no_entry_is_left_over(tmp_path):
    """A name that no view and no file has, and a heading that no page has, are taken out."""
    columns = view_columns(tmp_path)
    known = {name for view, column in columns for name in (column, f"{view}.{column}")}
    known |= set(schema_fields())
    stale = [e.label for e in ENTRIES if not e.headings and not set(e.names) & known]
    assert not stale, stale
    written = set(written_headings())
    written_in = [*(ROOT / "llmbench/report").rglob("*.py"), PARTS_OF_A_STEP, PAGE_PLAN]
    code = "".join(p.read_text() for p in written_in)
    parts = {h: re.split(r" \(.*|\{\}|, ", h)[0].strip() for e in ENTRIES for h in e.headings}
    stale = [
        h for h, part in parts.items()
        if h not in written and part.lower() not in code.lower()
    ]  # fmt: skip
    assert not stale, stale


def test_a_formula_has_a_source_and_a_topic_with_a_formula_says_what_it_leaves_out():
    for topic in TOPICS:
        assert bool(topic.formula) == bool(topic.source) == bool(topic.silent), topic.key
    assert sum(map(len, DEFINED.values())) >= 30


def test_the_schema_has_the_glossary_as_its_descriptions():
    defs = json_schema()["$defs"]
    speed = defs["StepsRecord"]["properties"]["time_s"]
    assert (
        speed["description"]
        == "Time of the step: on the slowest rank in the run file, on its own rank in the view `steps` (s)"
    )
    assert "description" in defs["CpuRecord"]["properties"]["logical_cores"]
    json.dumps(defs)


def test_the_glossary_imports_nothing_but_python():
    program = (
        "import sys; before = set(sys.modules); import llmbench.core.glossary.table;"
        " new = {m.partition('.')[0] for m in set(sys.modules) - before};"
        " sys.exit(str(new - set(sys.stdlib_module_names) - {'llmbench'}) if"
        " new - set(sys.stdlib_module_names) - {'llmbench'} else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
