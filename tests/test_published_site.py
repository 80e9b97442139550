"""The pages on published results in a real browser, opened as files: pickers, links, prices."""

import re
from pathlib import Path

import pytest
from browsers import Reader
from notebooks import ROOT

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


NOTES = {
    "comparable": None,
    "not comparable": "These runs are not comparable",
    "not all comparable": "Not all of these runs are comparable",
    "comparability unknown": "It is unknown whether these runs are comparable",
    "not all known to be comparable": "It is unknown whether all of these runs are comparable",
}


NO_WINNER = {
    "the runs are not comparable": {"not comparable"},
    "it is unknown whether the runs are comparable": {"comparability unknown"},
}
VERDICT = re.compile(r'<h3[^>]*>(?:<a[^>]*>)?Verdict<.*?class="badge[^>]*>([^<]+)', re.S)


@pytest.mark.slow
def test_the_card_of_a_study_says_what_its_page_says(tmp_path):
    """One verdict for a study: on the first page, beside the cards of its page, as the title of the
    note below them, and in the sentence that names no winner.
    """
    build_report(ROOT / "reports/published", tmp_path / "site")
    first = (tmp_path / "site/index.html").read_text()
    cards = re.split(r'(?=<h\d[^>]*>\s*<a href="study-)', first)[1:]
    said = {re.search(r'href="(study-[\w.-]+\.html)"', c)[1]: c for c in cards}
    words = {page: re.search(r'class="badge[^>]*>([^<]+)', c)[1] for page, c in said.items()}
    assert len(words) >= 20 and len(set(words.values())) >= 3, words
    for page, badge in words.items():
        text = (tmp_path / "site" / page).read_text()
        notes = [note for note in NOTES.values() if note and f"{note}<" in text]
        assert notes == ([NOTES[badge]] if NOTES[badge] else []), (page, badge, notes)
        assert VERDICT.findall(text) == [badge], (page, badge)
        head = re.search(r'class="answer">([^<]+)', text)[1]
        for sentence in (head, said[page]):
            for words_of, badges in NO_WINNER.items():
                assert words_of not in sentence or badge in badges, (page, badge, sentence)
