"""What other people's run files and requests say, in notebooks, tables, metrics and trackers: text,
and names of files below the folder.
"""

import ast
import csv
import io
import json
import re
from pathlib import Path

import duckdb
import pypandoc
import pytest
from notebooks import ROOT
from papermill.translators import PythonTranslator

from llmbench.cli.export_verb import _written
from llmbench.core.records import empty_run
from llmbench.core.schema import LoggedRecord, StepsRecord
from llmbench.launch.sweep.display import kernel_table, verdict_table
from llmbench.spec.request import Data
from llmbench.spec.resolve import resolve_run
from llmbench.store import trackers
from llmbench.store.exports import csv_text, prometheus_text, scalars, write_parquet

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[a](javascript:alert(1))",
    "![a](http://127.0.0.1/x)",
    "a | b | c",
    "a\n\n# head",
    "`</code><b>x",
    "$\\input{/etc/passwd}$",
    "{{< include /etc/passwd >}}",
    "<!-- x",
    "a\r\nb",
    "*x* _y_ ~z~ ^w^",
    "=HYPERLINK(1)",
    "+1+1",
    "-1+1",
    "@SUM(1)",
    "\t=1",
    '"; DROP TABLE steps; --',
    "'",
    '"',
    "a\\",
    "a\x00b",
    "a\x1b[2Jb",
    "../../pwned",
    "/tmp/pwned",
    "..",
    ".",
    "",
    "a/b",
    "x" * 300,
    "é",
    "a\u2028b",
    'a"} 1\nevil{x="',
    "\u202e",
    "$(touch canary)",
    "`touch canary`",
)


def hostile_run(value):
    """A run whose names are the value, past the door that would set it aside: the renderers hold by
    themselves.
    """
    run = empty_run(
        "s.x.1",
        {"world_size": 1, "model": {"name": "m"}, "strategy": {"name": "ddp"}},
        "crash",
        "x",
        study="s",
        attempt=1,
    )
    steps = StepsRecord(step=[0, 1], time_s=[1.0, 1.0], tokens=[8, 8], loss=[2.0, 1.0])
    logged = [LoggedRecord.model_construct(name=value, values=[1.0, 2.0])]
    spec = run.spec.model_copy(
        update={
            "strategy": run.spec.strategy.model_copy(update={"name": value}),
            "model": run.spec.model.model_copy(update={"name": value}),
        }
    )
    return run.model_copy(
        update={"run_id": value, "study": value, "steps": steps, "logged": logged, "spec": spec}
    )


def page(markdown):
    return pypandoc.convert_text(markdown, "html", format="gfm")


def test_a_notebook_shows_texts_as_text(tmp_path):
    """The verdict, the kernels and the request of a run sheet, through a renderer of Markdown."""
    plain = page(verdict_table({"status": "crash", "reason": "x"}))
    cell = next(
        c
        for c in json.loads((ROOT / "nbs/runs/benchmark.ipynb").read_text())["cells"]
        if "markdown_text(" in "".join(c["source"]) and "cells =" in "".join(c["source"])
    )
    spec = resolve_run(
        {
            "study": "s",
            "model": "gpt-tiny",
            "strategy": "single",
            "world_size": 1,
            "seq_len": 64,
            "batch": {"micro": 1},
        }
    )
    from llmbench.launch.sweep.display import markdown_text

    shown = {}
    for value in HOSTILE:
        asked = spec.model_copy(
            update={"data": Data(kind="text", paths=(value,), tokenizer=value), "weights": value}
        )
        (tmp_path / "kernels-rank-000.json").write_text(
            json.dumps(
                {
                    "rank": 0,
                    "steps": 1,
                    "kernels": [{"name": value, "calls": 1, "self_time_s": 1.0, "share_pct": 1.0}],
                }
            )
        )
        exec(
            "".join(cell["source"]),
            {
                "spec": asked,
                "Markdown": lambda text: shown.update(text=text),
                "markdown_text": markdown_text,
            },
        )
        for text, cells in (
            (verdict_table({"status": "crash", "reason": value}), plain.count("<td")),
            (kernel_table(tmp_path), 4),
            (shown["text"], 2 * len(type(spec).model_fields) - 4),
        ):
            html = page(text)
            assert not re.search(r"<(script|img|a|b|h1|del)[ >]", html), (value, html)
            assert html.count("<td") == cells, (value, html)


def test_parameters_of_a_notebook_are_literals():
    for value in HOSTILE:
        code = PythonTranslator.codify(
            {"tokenizer": value, "data": {"paths": [value], value or "k": value}}
        )
        tree = ast.parse(code)
        assert all(isinstance(node, ast.Assign) for node in tree.body) and not [
            n for n in ast.walk(tree) if isinstance(n, ast.Call)
        ], value
        names: dict = {}
        exec(code, names)
        assert names["tokenizer"] == value and names["data"]["paths"] == [value], value


def test_metrics_keep_one_line_a_sample():
    for value in HOSTILE:
        text = prometheus_text(hostile_run(value))
        assert "\x00" not in text and "\x1b" not in text and "\r" not in text
        for line in text.split("\n"):
            assert (
                not line
                or line.startswith("# ")
                or re.fullmatch(r'llmbench_\w+\{(\w+="([^"\\\n]|\\["\\n])*",?)*\} [-+.\w]+', line)
            ), (value, line)


def test_tables_hold_no_formula_and_no_sql(tmp_path):
    for i, value in enumerate(HOSTILE):
        run = hostile_run(value)
        head, *rows = csv.reader(io.StringIO(csv_text(run)))
        assert len(rows) == 2 and not [c for c in head if c.startswith(("=", "+", "-", "@"))]
        path = write_parquet([run], tmp_path / f"{i}.parquet")
        names = [c[0] for c in duckdb.sql(f"DESCRIBE FROM '{path}'").fetchall()]
        assert len(names) == len(head) and names[-1] == f"logged_{value}".replace(
            "\x00", "\ufffd"
        ), value
        for _, values in scalars(run):
            assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) for name in values)


@pytest.mark.parametrize("to", ["parquet", "tensorboard"])
def test_names_from_a_run_are_files_below_the_folder(to, tmp_path, monkeypatch):
    here = tmp_path / "a/b/c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    for value in sorted(HOSTILE, key=lambda value: ".." not in value):
        written = Path(_written([hostile_run(value)], to, None)).resolve()
        assert written.is_relative_to(here) and written != here, f"{value!r} leads to {written}"
    assert (
        not [p for p in tmp_path.rglob("*") if p.is_file() and not p.is_relative_to(here)]
        and not Path("/tmp/pwned.parquet").exists()
    )


def test_trackers_are_given_safe_names(tmp_path, monkeypatch):
    """What wandb would be told, where it is not installed: the same calls, taken down."""
    import sys
    import types

    (tmp_path / "x").mkdir()
    told = []
    logged = types.SimpleNamespace(
        log=lambda values, step: told.extend(values),
        summary={},
        dir=str(tmp_path / "x/files"),
        log_artifact=lambda artifact: None,
        finish=lambda exit_code: None,
    )
    fake = types.SimpleNamespace(
        Settings=lambda **_: None,
        Artifact=lambda name, type: (
            told.append(name)
            or types.SimpleNamespace(add_file=lambda file, name: told.append(name))
        ),
        init=lambda **given: (
            told.extend([given["group"] or "none", given["name"], given["id"]]) or logged
        ),
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(trackers, "_needs", lambda package: None)
    for value in HOSTILE:
        trackers.send(hostile_run(value), "wandb", tmp_path)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) for name in told), told
