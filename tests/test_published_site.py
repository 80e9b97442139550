"""The pages on published results in a real browser, opened as files: pickers, links, prices."""

from pathlib import Path

import pytest
from browsers import Reader

from llmbench.plan.examples import demo_study
from llmbench.report.build import build_report

DOTS = "document.querySelectorAll('#chart-published-dots .mark-symbol.role-mark path').length"
SELECTS = "Array.from(document.querySelectorAll('#chart-published-dots select'))"
PICK = (
    "(box => {{ box.value = '{card}'; box.dispatchEvent(new Event('change', {{bubbles: true}}));"
    " return box.value; }})"
    "(" + SELECTS + ".find(s => Array.from(s.options).some(o => o.value == '{card}')))"
)
BARS = (
    "Array.from(document.querySelectorAll('#chart-published-price .mark-rect.role-mark path'))"
    ".map(bar => bar.getBBox().width)"
)
TICKS = (
    "Array.from(document.querySelectorAll('#chart-published-price .role-axis-label text'))"
    ".map(label => label.textContent).join(' ')"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    build_report(demo_study(folder / "results"), folder / "site")
    return folder / "site"


@pytest.fixture
def reader(browser, site) -> Reader:
    return Reader(browser, site)


@pytest.mark.slow
def test_pages_are_at_most_2_mb_and_the_hardware_is_on_the_first(site):
    sizes = {p.name: p.stat().st_size for p in site.glob("*.html")}
    assert {"published.html", "generations.html", "sources.html"} <= set(sizes)
    assert max(sizes.values()) <= 2_000_000, sizes
    first = (site / "index.html").read_text()
    assert "H100 SXM" in first and "MI355X" in first and "published.html" in first


@pytest.mark.slow
def test_pickers_choose_among_all_rows_and_a_dot_leads_to_its_source(reader):
    reader.open("published.html")
    every = reader.wait(f"{DOTS} > 900 && {DOTS}")
    assert reader.js(f"{SELECTS}.length") == 10
    assert reader.js(PICK.format(card="B200 SXM")) == "B200 SXM"
    some = reader.wait(f"{DOTS} < {every} && {DOTS}")
    assert 20 < some < every / 4
    said = reader.js(
        "document.querySelector('#chart-published-dots .mark-symbol.role-mark path')"
        ".getAttribute('aria-label')"
    )
    assert "card: B200 SXM" in said and "link: https://github.com/" in said
    assert reader.console() == []


@pytest.mark.slow
def test_a_price_that_is_typed_moves_the_break_even(reader):
    reader.open("generations.html")
    before = reader.wait(f"{BARS}.length > 5 && {BARS}")
    ticks = reader.js(TICKS)
    reader.js(
        "(box => { box.value = 30; box.dispatchEvent(new Event('input', {bubbles: true})); })"
        "(document.querySelector('#chart-published-price .vega-bind input'))"
    )
    reader.wait(f"{TICKS} != {ticks!r}")
    assert len(reader.js(BARS)) == len(before)
    assert max(float(t) for t in reader.js(TICKS).split() if t.replace(".", "").isdigit()) > 50
