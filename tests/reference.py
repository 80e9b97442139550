"""docs/parameters.md and docs/reference.md are written from the code: the schema, the views and
the glossary.

`make notebooks` writes them; tests/test_reference.py compares.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from llmbench.analysis.rules.kinds import schema_fields
from llmbench.core.errors import UNSURE, LlmbenchError, RequestError
from llmbench.core.glossary.entry import Entry
from llmbench.core.glossary.table import column_entry, field_entry
from llmbench.core.schema import SCHEMA
from llmbench.core.versions.migration import NEWEST
from llmbench.plan.examples import demo_study
from llmbench.spec.notice import INTERRUPTED_CODE
from llmbench.spec.project.parameter_keys import parameters_md
from llmbench.store.database import PUBLISHED, open_store
from llmbench.store.published.view import PUBLISHED_COLUMNS

ROOT = Path(__file__).parent.parent
NOTE = "<!-- Written by make notebooks from the code and the glossary; do not edit. -->"
CODES = {
    0: "done; every run is ok, no limit is broken",
    LlmbenchError.exit_code: "a run or a check failed, or was ended with Ctrl-C: a run is not ok, a limit is "
    "broken, two sides may not be compared, a fault or a slow node was found, a file could not be read or a part "
    "of a page not be drawn",
    RequestError.exit_code: "the request was wrong; one line says what to type",
    UNSURE: "the answer is open: accept, bisect and verify, wherever the runs or the files do not tell; compare only "
    "with --fail-if-unsure or --min-detectable",
    INTERRUPTED_CODE: "a notice (SIGTERM) ended a run after a checkpoint; the same command goes on",
}


def view_columns() -> dict[str, list[tuple[str, str]]]:
    """Names and types of the columns of every view, by view."""
    with tempfile.TemporaryDirectory() as folder:
        demo_study(folder, (("single", 1, 0.5),))
        found = open_store(folder).sql(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = 'main' AND table_catalog = current_database() ORDER BY table_name, ordinal_position"
        )
        views: dict[str, list[tuple[str, str]]] = {}
        for view, column, kind in found.fetchall():
            views.setdefault(view, []).append((column, kind))
    return views | {PUBLISHED: list(PUBLISHED_COLUMNS.items())}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


def _row(name: str, kind: str, entry: Entry) -> str:
    return f"| `{name}` | {_cell(kind)} | {_cell(entry.unit)} | {_cell(entry.says)} |"


_ABOUT = {
    PUBLISHED: (
        "Results that others published, one row each. A query reads them when it names them, and needs no results "
        'of your own then: `llmbench query "SELECT publisher, mfu_pct FROM published"`.',
        "",
    )
}


def _views_md() -> list[str]:
    lines = ["## Columns of the views", "", '`llmbench query "SELECT … FROM runs"` reads them.']
    for view, columns in view_columns().items():
        lines += [
            "",
            f"### {view}",
            "",
            *_ABOUT.get(view, ()),
            "| column | type | unit | meaning |",
        ]
        lines += ["| --- | --- | --- | --- |"]
        lines += [_row(c, kind, column_entry(view, c)) for c, kind in columns]
    return lines


def _versions() -> str:
    """Which versions are read, and what is done with others."""
    read = f"Versions 1 to {NEWEST} are read" if NEWEST > 1 else "There is one version so far"
    return (
        f"{read}; `llmbench migrate` rewrites files of earlier ones, and a file of a newer one is "
        "refused with what to type."
    )


def _run_file_md() -> list[str]:
    lines = ["## Fields of the run file", ""]
    lines += [
        f"The schema is `{SCHEMA}`; `llmbench schema` prints it as a JSON Schema. {_versions()}"
    ]
    lines += ["", "| field | unit | meaning |", "| --- | --- | --- |"]
    for path in schema_fields():
        entry = field_entry(path)
        lines.append(f"| `{path}` | {_cell(entry.unit)} | {_cell(entry.says)} |")
    return lines


def reference_md() -> str:
    """Exit codes, columns of the views, fields of the run file, as Markdown."""
    lines = ["# Reference", "", NOTE, "", "Keys of parameter files: [parameters](parameters.md)."]
    lines += ["", "## Exit codes", "", "| code | meaning |", "| --- | --- |"]
    lines += [f"| {code} | {_cell(says)} |" for code, says in sorted(CODES.items())]
    return "\n".join([*lines, "", *_views_md(), "", *_run_file_md()]) + "\n"


def documents() -> dict[Path, str]:
    """The text of each document by its path."""
    return {
        ROOT / "docs/parameters.md": parameters_md(),
        ROOT / "docs/reference.md": reference_md(),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
