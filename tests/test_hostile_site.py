"""Run files whose every text is hostile: the site is built, nothing is executed, nothing is written
elsewhere, and the others keep their numbers.
"""

import csv
import html
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pypandoc
import pytest
from browsers import started
from pydantic import BaseModel
from test_report import copied_sources, made_run, section, texts

import llmbench.report.studies.page
from llmbench.core.errors import LlmbenchError
from llmbench.core.escape import one_line
from llmbench.core.files import slug, write_json_atomic
from llmbench.core.records import write_run
from llmbench.core.schema import RunFile, dump_run
from llmbench.report.build import build_report
from llmbench.report.studies.page import StudyPart
from llmbench.report.workbench import Study, Workbench
from llmbench.store.database import open_store

PWN = "window.PWNED=1;document.title='PWNED'"
SECRET = "the-canary-that-no-page-may-show"
HOSTILE = [
    f"<script>{PWN}</script>",
    f'<img src=x onerror="{PWN}">',
    f"<svg onload={PWN}>",
    f"</script><script>{PWN}</script>",
    f'"><script>{PWN}</script>',
    f"' onmouseover='{PWN}",
    "<!-- ",
    "--> <b>bold</b>",
    f"<iframe srcdoc='<script>{PWN}</script>'></iframe>",
    f"[click](javascript:{PWN})",
    f'<a href="javascript:{PWN}">x</a>',
    "{{< include /etc/hostname >}}",
    "{{< include /_secret.md >}}",
    "{{< include _secret.md >}}",
    "{{< meta title >}}",
    "{{< var total.runs >}}",
    "{{< video x >}}",
    "{{{< meta x >}}}",
    "@fig-nowhere and @tbl-runs",
    f'[x]{{.y onclick="{PWN}"}}',
    "```{python}\nprint(1)\n```",
    "`code` ``` ~~~",
    "$\\input{/etc/hostname}$ $$ x $$",
    "\\(x\\) \\begin{equation}",
    "---\ntitle: other\nformat: pdf\n---",
    "::: {.callout-note}\n:::",
    "a | b | c\n|---|---|",
    "line one\nline two\n\nline four\r\n\r\n# Heading\n",
    "nul\0bell\x07escape\x1b[31m",
    "\u202egnp.exe\u2066\u200f",
    "# % ? ( & ; : ! \\ / * + = ~ ^ _",
    ".hidden",
    "_hidden",
    "-rf",
    "",
    "  ",
    "x" * 300,
    "y" * 100_000,
    "../../../pwn",
    "{HERE}/pwn",
    "=cmd|' /C calc'!A0",
    "@SUM(A1)",
    "{=html}\n<b>",
    "![](x.png){onerror=1}",
    "ü 😀 \ufeff\u2028\x85",
    "&lt;script&gt; &amp;lt;",
    "'; DROP VIEW runs; --",
    "$study",
    "1. one",
    "Table: mine {#tbl-runs-sound}",
    "nul.html#?x",
    "<RawBlock>",
    "%2e%2e%2fpwn",
]
# what names a run, a place or a moment has a grammar, and a file that breaks it may be set aside;
# all other texts are free
NAMES = re.compile(
    r"run_id|study|spec\.name|spec\.strategy\.name|env\.framework|env\.hostnames\.0|env\.hosts\.0\.hostname|ranks\.0\.host|telemetry\.0\.host|started_at|ended_at|logged\.0\.name"
)


def text_places(kind: Any, path: str = "") -> Iterator[str]:
    """Every place of a run file that holds a text, walked through the types of its schema; `.0` is
    a list's first, `.*` a key and its value.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield from text_places(field.annotation, f"{path}.{field.alias or name}".lstrip("."))
    elif origin in (Union, UnionType):
        for one in inner:
            yield from text_places(one, path)
    elif origin is list:
        yield from text_places(inner[0], f"{path}.0")
    elif origin is dict:
        yield f"{path}.*"
    elif origin is not Literal and hasattr(kind, "__metadata__"):
        yield from text_places(inner[0], path)
    elif origin is not Literal and isinstance(kind, type) and kind is str:
        yield path


CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
SHOWN = [
    value for value in HOSTILE if not CONTROL.search(value)
]  # a run with the others is set aside at the door
PLACES = sorted(set(text_places(RunFile)))
FREE = [p for p in PLACES if not NAMES.fullmatch(p)]
NAMED = [p for p in PLACES if NAMES.fullmatch(p)]


def put_text(run: dict[str, Any], path: str, text: str) -> None:
    """Put a text at a place of a run file."""
    *way, last = path.split(".")
    value: Any = run
    for key, following in pairwise(path.split(".")):
        if isinstance(value, list):
            value.extend([{}] * (not value))
            value = value[int(key)]
        else:
            if value.get(key) is None:
                value[key] = [] if following.isdigit() else {}
            value = value[key]
    if last == "*":
        value |= {text[:150]: text}  # a longer key is set aside at the door
    elif isinstance(value, list):
        value[:1] = [text]
    else:
        value[last] = text


def full_run(strategy: str, attempt: int, study: str) -> dict[str, Any]:
    """A run with something at each place."""
    import_of = {"kind": "import", "format": "torchtitan", "file": "a.log", "sha256": "0" * 64}
    run = dump_run(made_run(strategy, attempt, study=study)) | {
        "source": import_of,
        "reason": "none",
        "ended_at": "2026-11-21T11:00:00.000Z",
    }
    run["collectives"] = [
        {"kind": "all_reduce", "calls": 4, "bytes": 4 * 10**6, "time_s": 0.1, "exposed_s": 0.05}
    ]
    run["window"] = {"steps": 2, "time_s": 1.0, "exposed_s": 0.05}
    run["events"] = [
        {"kind": "from_request", "text": "…"},
        {"kind": "not_honoured", "text": "seed = 1: …"},
    ]
    run["logged"] = [{"name": "mfu_pct", "values": [1.0] * len(run["steps"]["step"])}]
    run["spec"]["data"]["paths"] = ["a.txt"]
    run["telemetry"] = [{"rank": 0, "time_s": [0.0], "busy_pct": [50.0], "lowered": [""]}]
    return run


def put_raw(folder: Path, name: str, run: dict[str, Any]) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "run.json").write_text(json.dumps(run), encoding="utf-8")


def made_hostile(
    folder: Path, places: list[str], values: list[str], study: str, tag: str
) -> dict[str, dict[str, str]]:
    """One run a value; each place sees each value once. The text at each place by the run's id."""
    told = {}
    for i in range(len(values)):
        run, said = full_run("ddp", i + 1, study), {}
        for j, place in enumerate(places):
            if (
                place == "study" and i % 8
            ):  # each study is drawn on every page; its names are tried one by one below
                continue
            said[place] = values[(i + j) % len(values)].replace("{HERE}", str(folder.parent))
            put_text(run, place, said[place])
        put_raw(folder, f"{tag}-{i}", run)
        told[run["run_id"]] = said
    return told


def sound(folder: Path) -> None:
    for attempt in (1, 2, 3):
        for strategy in ("single", "ddp", "fsdp"):
            run = made_run(strategy, attempt, study="sound")
            write_run(folder / "sound" / run.run_id, run)
    write_json_atomic(
        folder / "sound" / "study.json",
        {"study": "sound", "title": "A sound study", "varies": ["strategy", "world_size"]},
    )


def tree(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*")}


@contextmanager
def keep_sources(folder: Path) -> Iterator[Path]:
    """Keeps what `build_report` gives to the renderer, as quarto would get it."""
    real = llmbench.report.build.render_site

    def render_and_keep(source: Path, *more: Any, **how: Any) -> Path:
        shutil.copytree(source, folder)
        for place, text in how["texts"].items():
            (folder / place).write_text(text, encoding="utf-8")
        return real(source, *more, **how)

    llmbench.report.build.render_site = render_and_keep
    try:
        yield folder
    finally:
        llmbench.report.build.render_site = real


class Hostile:
    """A site of sound and hostile runs, what was said in them, and the same site of the sound runs
    alone.
    """

    def __init__(self, folder: Path):
        (folder / "alone").mkdir(), (folder / "deep" / "er").mkdir(parents=True)
        self.folder, self.results = folder, folder / "results"
        source = copied_sources(folder / "reports")
        (source / "_secret.md").write_text(SECRET)
        sound(folder / "alone"), sound(self.results)
        self.free = made_hostile(self.results, FREE, SHOWN, "free", "free")
        made_hostile(
            self.results, FREE, [v for v in HOSTILE if v not in SHOWN] * 2, "refused", "refused"
        )
        self.named = made_hostile(self.results, NAMED, HOSTILE[::2], "named", "named")
        for i, value in enumerate(HOSTILE):
            study = {
                "study": f"told-{i}",
                "title": value,
                "question": value,
                "baseline": {"name": value},
                "varies": ["strategy"],
            }
            write_json_atomic(self.results / f"told-{i}" / "study.json", study)
            if i % 9 == 0:  # a study is drawn on every page: a few are enough
                put_raw(self.results / f"told-{i}", "one", full_run("ddp", 1, f"told-{i}"))
        before = tree(folder)
        started = time.process_time() + sum(os.times()[2:4])
        self.alone = build_report(
            folder / "alone", folder / "deep" / "er" / "alone", engine="pandoc", source=source
        )
        self.alone_s = (
            time.process_time() + sum(os.times()[2:4]) - started
        )  # of this process and of its ended children
        with keep_sources(folder / "deep" / "er" / "site-sources") as self.sources:
            self.outcome = build_report(
                self.results, folder / "deep" / "er" / "site", engine="pandoc", source=source
            )
        self.site = self.outcome.out
        self.outside = {
            p
            for p in tree(folder) - before
            if not p.startswith(("deep/er/alone", "deep/er/site")) and ".llmbench" not in p
        }
        self.pages = texts(self.site)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Iterator[Hostile]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "tmp").mkdir()
    kept, tempfile.tempdir = (
        tempfile.tempdir,
        str(folder / "tmp"),
    )  # what leaves the scratch folder is seen as well
    try:
        yield Hostile(folder)
    finally:
        tempfile.tempdir = kept


def test_the_walk_finds_the_texts_of_the_schema():
    assert len(PLACES) >= 55 and {
        "reason",
        "env.devices.0.name",
        "env.versions.*",
        "events.0.text",
        "spec.model.name",
        "study",
    } <= set(PLACES)
    assert len(HOSTILE) >= 40 and len(set(HOSTILE)) == len(HOSTILE)


def test_no_build_fails_and_nothing_is_written_elsewhere(hostile):
    assert hostile.outcome.problems == () and hostile.alone.problems == ()
    kept = {f"deep/er/.{name}.kept.sqlite" for name in ("site", "alone")}
    assert hostile.outside == kept, "what is kept of a site stands beside it, and nothing else"


def test_every_run_has_a_page_or_was_set_aside_by_name(hostile):
    aside = {
        r[0] for r in open_store(hostile.results).sql("SELECT file FROM quarantine").fetchall()
    }
    held = {
        (hostile.results / r / "run.json"): json.loads(
            (hostile.results / r / "run.json").read_text()
        )["run_id"]
        for r in tree(hostile.results)
        if (hostile.results / r / "run.json").is_file()
    }
    for file, run_id in held.items():
        named = f"{hostile.results.name}/{file.relative_to(hostile.results)}"
        assert named in aside or f"runs/{slug(run_id)}.html" in hostile.pages, named
    free = [f"{hostile.results.name}/free-{i}/run.json" for i in range(len(SHOWN))]
    assert not [f for f in free if f in aside], "a free text is no reason to set a run aside"
    assert sum("/refused-" in f for f in aside) == 2 * (len(HOSTILE) - len(SHOWN)), (
        "control characters are"
    )


def test_the_sound_runs_keep_their_numbers(hostile):
    for kind in ("data", "sql"):
        mine, theirs = (tree(site / kind / "sound") for site in (hostile.alone.out, hostile.site))
        assert mine == theirs and mine
        for name in mine:
            if not name.startswith("quarantine"):
                assert (hostile.alone.out / kind / "sound" / name).read_bytes() == (
                    hostile.site / kind / "sound" / name
                ).read_bytes(), name

    def rows(site):
        return [
            r
            for r in csv.DictReader((site / "metrics.csv").open(newline=""))
            if r["study"] == "sound"
        ]

    assert rows(hostile.alone.out) == rows(hostile.site) and len(rows(hostile.site)) == 9


class Markup(HTMLParser):
    """What a page could execute."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            scheme = re.sub(r"[\s\0]", "", value or "").lower()
            if (
                name.startswith("on")
                or scheme.startswith(("javascript:", "vbscript:"))
                or (name == "href" and scheme.startswith("data:") and tag != "link")
            ):
                self.found.append(f"{tag} {name}={value}")
        if tag in ("iframe", "object", "embed", "base", "form", "meta") and not (
            tag == "meta" and dict(attributes).keys() & {"charset", "name"}
        ):
            self.found.append(tag)
        if tag == "script" and (dict(attributes).get("src") or "").rpartition("assets/")[
            1:
        ] not in (("assets/", "site.js"), ("assets/", "charts.js")):
            self.found.append(f"script {sorted(dict(attributes).items())}")


PLAIN_SCRIPTS = 2  # of the page's frame: its theme, its lists


# Pages with a script and data of their own: Plan shows no run of a user, Compare shows their names,
# SQL reads them as rows.
SCRIPTED = {"plan.html": "plan-data", "compare.html": "compare-data", "ask.html": "ask-data"}


def test_no_page_holds_anything_that_could_be_executed(hostile):
    for name, text in hostile.pages.items():
        found = [f for f in Markup(text).found if not f.startswith("script [('data-chart'")]
        if name in SCRIPTED:
            found.remove(f"script [('id', '{SCRIPTED[name]}'), ('type', 'application/json')]")
            found.remove("script []")
        assert found == ["script []"] * PLAIN_SCRIPTS, (name, found)


def test_no_file_of_the_host_and_no_secret_stands_on_a_page(hostile):
    host = (
        Path("/etc/hostname").read_text().strip()
        if Path("/etc/hostname").is_file()
        else "no-such-file"
    )
    for file in hostile.site.rglob("*"):
        if file.is_file() and file.suffix in (".html", ".md", ".js"):
            text = file.read_text(encoding="utf-8")
            assert SECRET not in text, file.name
            assert len(host) < 5 or not re.search(rf"\b{re.escape(host)}\b", text), file.name


def visible(text: str) -> str:
    """The text of a page as a reader sees it, on one line."""
    body = re.sub(
        r"<(script|style)\b.*?</\1>",
        " ",
        text.partition('<article class="content">')[2],
        flags=re.DOTALL,
    )
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", body)).split())


def test_every_text_is_shown_as_the_text_that_it_is(hostile):
    for run_id, said in hostile.free.items():
        shown = visible(hostile.pages[f"runs/{slug(run_id)}.html"])
        for place in (
            "reason",
            "spec.model.name",
            "env.devices.0.name",
            "env.command",
            "env.versions.*",
        ):
            line = " ".join(one_line(said[place], 100).partition(" … ")[0].split())
            assert line in shown, (place, line)


# How our own blocks of HTML begin: a chart, the facts of a run, a page with a script, a picture.
SCROLL = '<div class="table-scroll" role="region" '
OUR_HTML = ('<div class="vega-chart" ', "<table>", "<style>", '<svg class="picture" ', SCROLL)


def test_no_shortcode_stands_in_the_sources_that_quarto_reads(hostile):
    made = [
        *(hostile.sources / "runs").glob("*.qmd"),
        *(hostile.sources / "_generated").glob("*.md"),
    ]
    assert len(made) > len(SHOWN)
    for file in made:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"\{\{\s*<", text), file.name
        begins = re.findall(r"^`````\{=html\}\n(.*)$", text, re.MULTILINE)
        assert all(first.startswith(OUR_HTML) for first in begins), (file.name, begins)
        text = re.sub(r"^`````\{=html\}$", "", text, flags=re.MULTILINE)
        assert not re.search(r"^ *```+ *\{python|`\{=html", text, re.MULTILINE), file.name


def test_the_report_in_markdown_is_text_on_github_too(hostile):
    text = (hostile.site / "report.md").read_text(encoding="utf-8")
    assert not Markup(pypandoc.convert_text(text, "html", "gfm")).found and "{{<" not in text


def test_a_spreadsheet_computes_no_cell(hostile):
    for file in hostile.site.rglob("*.csv"):
        for row in csv.reader(file.open(newline="", encoding="utf-8")):
            odd = [
                c
                for c in row
                if c.lstrip().startswith(("=", "+", "-", "@"))
                and not re.fullmatch(r"[+-]?[\d.]+([eE][+-]?\d+)?|-?inf", c)
            ]
            assert not odd, (file.name, odd)


def test_a_page_has_its_usual_size(hostile):
    usual = max(
        len(text) for name, text in texts(hostile.alone.out).items() if name.startswith("runs/")
    )
    largest = max(
        (len(text), name) for name, text in hostile.pages.items() if name.startswith("runs/")
    )
    assert largest[0] < 4 * usual + 100_000, (largest, usual)


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_of_a_study_stays_below_the_folder(value, tmp_path):
    """Past the reading door, which sets such a study aside: the writing side is safe by itself."""
    folder = tmp_path / "a" / "b" / "reports"
    (folder / "_sql").mkdir(parents=True)
    (folder / "_sql" / "demo.sql").write_text(
        "SELECT 1 AS one WHERE $study = $study ORDER BY one;\n"
    )
    study, before = Study(value, value), tree(tmp_path)
    bench = Workbench(open_store(tmp_path / "a"), folder)
    assert bench.rows("demo", study.name) == [{"one": 1}]
    bench.keep("kept", slug(value), [], ["a"])
    assert all(p.startswith("a/b/reports/") for p in tree(tmp_path) - before)
    assert re.fullmatch(r"[A-Za-z0-9-]+", study.anchor)


def test_a_name_of_a_file_does_not_leave_the_report(tmp_path):
    """The last check before each write, whatever made the name, and where a link leads."""
    folder = tmp_path / "a" / "reports"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path)
    bench = Workbench(open_store(tmp_path / "a"), folder)
    for names in (("..", "x.csv"), ("data", "../../x.csv"), (str(tmp_path / "x"),), ("link", "x")):
        with pytest.raises(LlmbenchError, match="does not lie below"):
            bench.write(*names, text="pwned")
    assert tree(tmp_path) == {"a", "a/reports", "a/reports/link"}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


LOOK = """return {pwned: window.PWNED === 1 || document.title === 'PWNED', handlers: Array.from(document.querySelectorAll('*'))
  .filter(e => Array.from(e.attributes).some(a => a.name.startsWith('on'))).length,
  scripts: Array.from(document.scripts).filter(s => !s.src && !s.dataset.chart).length, frames: document.querySelectorAll('iframe, object, embed').length,
  failed: document.querySelectorAll('.chart-error').length, title: document.title}"""


def opened(chromium, site: Path, pages: list[str]) -> None:
    for page in pages:
        chromium.get(f"{site.as_uri()}/{page}")
        found = chromium.execute_script(LOOK)
        assert (
            not found["pwned"]
            and found["handlers"] == found["frames"] == found["failed"] == 0
            and found["scripts"] <= PLAIN_SCRIPTS + 2 * (page in SCRIPTED)
        ), (page, found)


def test_chromium_executes_nothing(hostile, chromium):
    own = [name for name in hostile.pages if "/" not in name]
    some = [f"runs/{slug(run_id)}.html" for run_id in list(hostile.free)[::6]]
    opened(chromium, hostile.site, [*own, *some])
    chromium.get(f"{hostile.site.as_uri()}/runs.html")
    box = chromium.find_element("id", "search-input")
    box.send_keys("onerror")
    chromium.execute_async_script("setTimeout(arguments[0], 500)")
    assert not chromium.execute_script(LOOK)["pwned"], "the search shows texts of all pages"


@pytest.mark.slow
def test_chromium_executes_nothing_on_any_page(hostile, chromium):
    opened(chromium, hostile.site, sorted(hostile.pages))


def test_what_a_log_does_not_know_costs_no_page(tmp_path):
    """Names, calls, first losses and ranks that are null, as imported logs leave them."""
    sound(tmp_path / "r")
    for attempt in (1, 2):
        for card in ("Card A", "Card B"):
            run = full_run("ddp", attempt, "log")
            run["run_id"] += f".{card[-1]}"
            run["env"]["devices"] = [{"rank": 0, "name": card}]
            run["spec"] |= {
                "name": None,
                "hash": None,
                "world_size": None,
                "strategy": {},
                "batch": {},
            }
            run["collectives"] = [
                {
                    "kind": "all_reduce",
                    "calls": None,
                    "bytes": None,
                    "time_s": 0.1,
                    "exposed_s": None,
                }
            ]
            run["steps"]["loss"][0] = None
            put_raw(tmp_path / "r", f"log-{attempt}-{card[-1]}", run)
    outcome = build_report(
        tmp_path / "r",
        tmp_path / "site",
        engine="pandoc",
        source=copied_sources(tmp_path / "reports"),
    )
    assert outcome.problems == () and set(outcome.studies) == {"log", "sound"}


def test_columns_of_the_steps_that_are_missing_cost_no_page(tmp_path):
    """Each of them alone, all but each, and all: a log of means without losses is one of these."""
    sound(tmp_path / "r")
    names = [name for name in full_run("ddp", 1, "x")["steps"] if name != "step"]
    missing = [gone for k in (1, len(names) - 1, len(names)) for gone in combinations(names, k)]
    for i, gone in enumerate(missing, 1):
        run = full_run("ddp", i, "columns")
        run["steps"]["mean_of"] = [2] * len(run["steps"]["step"])
        run["steps"] |= dict.fromkeys(gone)
        put_raw(tmp_path / "r", f"columns-{i}", run)
    source = copied_sources(tmp_path / "reports")
    outcome = build_report(tmp_path / "r", tmp_path / "site", engine="pandoc", source=source)
    assert outcome.problems == () and outcome.runs == 9 + len(missing), outcome


def test_a_part_that_cannot_be_drawn_is_a_note_and_the_others_are_there(tmp_path, monkeypatch):
    sound(tmp_path / "r")
    odd = StudyPart("memory", "Memory", lambda bench, study: f"{None:.3f}")
    monkeypatch.setitem(llmbench.report.studies.page.SECTIONS, "memory", odd)
    outcome = build_report(
        tmp_path / "r",
        tmp_path / "site",
        engine="pandoc",
        source=copied_sources(tmp_path / "reports"),
    )
    assert len(outcome.problems) == 1 and outcome.problems[0].startswith(
        "memory of sound: TypeError"
    )
    memory, speed = (section(tmp_path / "site", "sound", name) for name in ("memory", "throughput"))
    assert "This part could not be drawn" in memory and "could not be drawn" not in speed


LOGS = Path(__file__).resolve().parent.parent.parent / "shared" / "logs"
FOLDERS = sorted(p.name for p in LOGS.iterdir() if p.is_dir()) if LOGS.is_dir() else []


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_real_logs_has_a_site_and_leaves_the_sound_study_its_own(name, tmp_path):
    from llmbench.cli.main import main

    sound(tmp_path / "alone"), sound(tmp_path / "results")
    main(["import", str(LOGS / name), "--results", str(tmp_path / "results")])
    source = copied_sources(tmp_path / "reports")
    alone = build_report(tmp_path / "alone", tmp_path / "a", engine="pandoc", source=source)
    outcome = build_report(tmp_path / "results", tmp_path / "b", engine="pandoc", source=source)
    assert outcome.problems == () and outcome.runs > alone.runs == 9
    for file in (tmp_path / "a" / "data" / "sound").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / "data" / "sound" / file.name).read_bytes(), (
            file.name
        )


def huge_run(kind: str) -> dict[str, Any]:
    """One run with a megabyte in each of ten places, with 200,000 events, or with 50 MB of text."""
    run = full_run("ddp", 1, "huge")
    if kind == "texts":
        for place in (
            "reason",
            "spec.model.name",
            "spec.model.family",
            "env.topology",
            "env.command",
            "env.devices.0.name",
            "env.cpu.name",
            "source.file",
            "events.0.text",
        ):
            put_text(run, place, "<b>&|x " * 150_000)
        run["env"]["versions"] |= {f"package-{i}": "1.0" for i in range(10_000)}
    elif kind == "events":
        run["events"] = [{"kind": "not_honoured", "text": f"seed = {i}: …"} for i in range(200_000)]
    else:
        run["events"] = [{"kind": "warning", "text": "word " * 2_000_000} for _ in range(5)]
    return run


@pytest.mark.parametrize(
    "kind", ["texts", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("events", "whole"))]
)
def test_a_huge_run_costs_the_others_nothing(hostile, kind, tmp_path):
    sound(tmp_path / "r")
    put_raw(tmp_path / "r", "huge", huge_run(kind))
    before = time.process_time() + sum(os.times()[2:4])
    outcome = build_report(
        tmp_path / "r",
        tmp_path / "site",
        engine="pandoc",
        source=copied_sources(tmp_path / "reports"),
    )
    took_s = time.process_time() + sum(os.times()[2:4]) - before
    assert outcome.problems == ()
    sizes = {name: len(text) for name, text in texts(tmp_path / "site").items()}
    usual = {name: len(text) for name, text in texts(hostile.alone.out).items()}
    assert max(sizes.values()) < 2 * max(usual.values()), sorted(
        sizes.items(), key=lambda i: -i[1]
    )[:3]
    assert took_s < 3 * hostile.alone_s + 5, (
        f"{took_s:.1f} s of computing, and {hostile.alone_s:.1f} s without the huge run"
    )
