"""The library on the site: each notebook is a page, its links lead on, its text runs no scripts."""

import ast
import json
import re
import shutil
import time
from html.parser import HTMLParser
from urllib.parse import urlparse

import pytest
from browsers import Reader, started
from notebooks import ROOT, library_notebooks

from llmbench.core.glossary.table import ENTRIES
from llmbench.report.build import build_report
from llmbench.report.glossary import notebook_of
from llmbench.report.library.library import write_library
from llmbench.report.site.renderer import broken_links, render_site

HOSTILE = """# evil

> Text that would like to run

<script>window.ran = 1</script> <img src=x onerror="window.ran = 2"> [a](javascript:window.ran=3)

[b]: javascript:window.ran=4

[b] and <javascript:window.ran=5> and [c](https://example.org){onclick="window.ran=6"}

## Head {onmouseover="window.ran=7"}

::: {.x onclick="window.ran=8"}
inside
:::

{{< include ../../secret.md >}}
"""
OUTPUT = "<script>window.ran = 9</script> ```\n{{< var site.title >}}\n```{python}\n1 / 0\n```\n"


class Active(HTMLParser):
    """What in a page could run: scripts, handlers, addresses that are programs."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += ["script"] * (tag in ("script", "iframe", "object", "embed"))
        for name, value in attrs:
            program = name in ("href", "src", "action") and re.match(
                r"\s*(javascript|data|vbscript):", value or "", re.IGNORECASE
            )
            self.found += [f"{name}={value}"] if name.startswith("on") or program else []


def article(page: str) -> str:
    return page.partition('<article class="content">')[2].rpartition("</article>")[0]


def notebook(*cells: tuple[str, str, list]) -> str:
    stored = [{"cell_type": k, "source": [s], "outputs": o} for k, s, o in cells]
    return json.dumps({"cells": stored})


def test_text_of_a_notebook_cannot_run_scripts(tmp_path):
    root, source = tmp_path / "project", tmp_path / "report"
    (root / "nbs/10_evil").mkdir(parents=True)
    (root / "tests").mkdir()
    shown = [
        {"output_type": "stream", "text": [OUTPUT]},
        {"output_type": "execute_result", "data": {"text/markdown": HOSTILE}},
    ]
    docstring = "#| export\ndef f() -> int:\n    '<script>window.ran=10</script> {{< meta x >}}'"
    text = notebook(
        ("markdown", HOSTILE, []),
        ("code", "#| default_exp evil.evil", []),
        ("code", docstring, shown),
    )
    for name in ("index", "10_evil/index", "10_evil/10_evil"):
        (root / f"nbs/{name}.ipynb").write_text(text)
    shutil.copytree(ROOT / "tests/site_fixture", source)
    shutil.copytree(ROOT / "reports/_theme", source / "_theme")
    (source / "_generated").mkdir(exist_ok=True)
    assert write_library(source, root) == 4
    assert "library/start.qmd" in (source / "_quarto.yml").read_text()
    for name in ("glossary", "methods"):
        (source / f"{name}.qmd").write_text("---\ntitle: x\n---\n")
    out = render_site(source, tmp_path / "site", engine="pandoc")
    for name in ("index", "10_evil/index", "10_evil/10_evil"):
        page = (out / f"library/{name}.html").read_text()
        assert Active(article(page)).found == []
        assert page.count("window.ran") >= 20 and "{{&lt; include" in page and "evil" in page


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out, began = tmp_path_factory.mktemp("library") / "site", time.perf_counter()
    results = ROOT / "reports/published/cpu-quickstart"
    outcome = build_report(results, out, engine="pandoc", docs=True)
    return outcome, time.perf_counter() - began


@pytest.mark.slow
def test_every_notebook_is_a_page_and_every_link_leads_somewhere(built, capsys):
    outcome, seconds = built
    assert not outcome.problems, outcome.problems
    names = [p.relative_to(ROOT / "nbs").with_suffix("") for p in (ROOT / "nbs").rglob("*.ipynb")]
    for name in names:
        page = (outcome.out / "library" / f"{name}.html").read_text()
        title = re.search(r"<title>(.+?) – [^<]+</title>", page)
        heading = re.search(r"<h1>(.+?)</h1>", page)
        assert title and heading and title[1].strip() and heading[1].strip(), name
        assert Active(article(page)).found == [], name
    assert broken_links(outcome.out) == []
    library = outcome.out / "library"
    size = sum(f.stat().st_size for f in library.rglob("*") if f.is_file())
    with capsys.disabled():
        print(f"\n  {len(names)} notebooks, {size / 2**20:.1f} MiB, site in {seconds:.0f} s")


@pytest.mark.slow
def test_from_a_number_to_its_formula_its_code_and_its_tests(built):
    site = built[0].out
    glossary = (site / "glossary.html").read_text()
    for entry in ENTRIES:
        module = entry.computed.rpartition(".")[0]
        assert f'href="library/{notebook_of(module)}.html#{entry.computed}"' in glossary, (
            entry.label
        )
    rates = (site / "library/60_analysis/70_rates.html").read_text()
    part = rates.partition('id="analysis.rates.throughput"')[2].partition("<h3")[0]
    assert "glossary.html#name-tokens-per-s" in part and "def throughput" in re.sub(
        r"<[^>]+>", "", part
    )
    parity = (site / "library/60_analysis/55_parity.html").read_text()
    used = re.findall(r'href="\.\./\.\./library/tests/(test_\w+)\.html#(test_\w+)"', parity)
    assert used
    for file, test in used:
        assert f'id="{test}"' in (site / f"library/tests/{file}.html").read_text()


@pytest.mark.slow
def test_definitions_of_every_module_have_their_place(built):
    site = built[0].out
    missing = []
    for n in library_notebooks():
        page = (site / "library" / f"{n}.html").read_text()
        module = ROOT / "llmbench" / f"{n.module.replace('.', '/')}.py"
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        made = [d.name for d in ast.parse(module.read_text()).body if isinstance(d, kinds)]
        public = [name for name in made if not name.startswith("_")]
        missing += [f"{n}: {d}" for d in public if f'id="{n.module}.{d}"' not in page]
    assert not missing, missing


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.mark.slow
def test_the_search_finds_a_metric_and_no_page_asks_the_net(built, browser):
    reader = Reader(browser, built[0].out).open("index.html")
    reader.requests()  # what the browser asked for when it started
    reader.open("library/60_analysis/70_rates.html")
    box = browser.find_element("id", "search-input")
    box.send_keys("usd_per_1m_tokens")
    reader.wait("document.querySelectorAll('#search-results a').length > 1")
    links = reader.js("Array.from(document.querySelectorAll('#search-results a'), a => a.href)")
    assert any("library/60_analysis/65_cost.html" in link for link in links), links
    assert any("glossary.html" in link for link in links), links
    for page in ("library/start.html", "library/index.html", "library/10_core/40_schema.html"):
        reader.open(page)
        reader.wait("document.querySelector('.sidebar a[aria-current=page]') !== null")
        assert reader.js("document.documentElement.scrollWidth") <= 1400
    asked = reader.requests()
    assert any(url.endswith("site.js") for url in asked)
    assert {urlparse(url).scheme for url in asked} <= {"file", "data", "about", "blob"}, asked
    assert reader.console() == []
