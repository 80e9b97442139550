"""The library on the site: each notebook is a page, its links lead on, its text runs no scripts."""

import ast
import itertools
import json
import re
import shutil
import time
from html.parser import HTMLParser
from urllib.parse import urlparse
from xml.etree import ElementTree

import pytest
from browsers import Reader
from notebooks import ROOT, library_notebooks

from llmbench.core.glossary.table import ENTRIES
from llmbench.report.build import build_report
from llmbench.report.glossary import notebook_of
from llmbench.report.library.cells import read_notebooks
from llmbench.report.library.flowchart import flowchart_svg, read_flowchart
from llmbench.report.library.library import write_library
from llmbench.report.site.links import broken_links
from llmbench.report.site.renderer import render_site

HOSTILE = """# evil

> Text that would like to run

<script>window.ran = 1</script> <img src=x onerror="window.ran = 2"> [a](javascript:window.ran=3)

[b]: javascript:window.ran=4

[b] and <javascript:window.ran=5> and [c](https://example.org){onclick="window.ran=6"}

## Head {onmouseover="window.ran=7"}

```mermaid
flowchart LR
  a["<script>window.ran=11</script>"] --> b
```

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


def flowcharts() -> dict[str, str]:
    """The Mermaid sources of the notebooks, by notebook."""
    cells = [(n.name, c.text) for n in read_notebooks(ROOT / "nbs").values() for c in n.cells]
    found = ((name, re.search(r"```mermaid\n(.*?)```", text, re.DOTALL)) for name, text in cells)
    return {name: match[1] for name, match in found if match}


@pytest.mark.parametrize("name", flowcharts())
def test_flowcharts_are_drawn_and_no_box_covers_another(name):
    svg = flowchart_svg(flowcharts()[name])
    assert svg, f"{name}: a form of Mermaid that flowchart.py does not draw"
    drawing = ElementTree.fromstring(svg)
    boxes = [r.attrib for r in drawing.iter("{http://www.w3.org/2000/svg}rect") if "rx" in r.attrib]
    assert len(boxes) == len(read_flowchart(flowcharts()[name]).labels)
    corners = [[float(b[k]) for k in ("x", "y", "width", "height")] for b in boxes]
    for (x, y, w, h), (x2, y2, w2, h2) in itertools.combinations(corners, 2):
        assert x + w < x2 or x2 + w2 < x or y + h < y2 or y2 + h2 < y
    assert all(x >= 0 and x + w <= float(drawing.get("width")) for x, _, w, _ in corners)


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
        if (name.as_posix()) in flowcharts():
            assert "flowchart LR" not in article(page) and f"{name.name}-" in article(page), name
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
