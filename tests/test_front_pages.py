"""The first page, the page of a study and Compare in a real browser, opened as files."""

import re
from pathlib import Path
from urllib.parse import urlparse

import pytest
from browsers import Reader
from test_report import copied_sources

from llmbench.core.files import write_json_atomic
from llmbench.plan.examples import demo_study
from llmbench.report.build import build_report

TITLE = "Three <script>window.PWNED=1</script> ways"
QUESTIONS = {
    "Choose a layout": "plan",
    "Choose hardware": "generations",
    "Is my number normal?": "published",
    "Compare two runs": "compare",
    "Did we get slower?": "history",
    "How was this measured?": "methods",
}
PAGES = ["index.html", "study-demo.html", "compare.html", "history.html", "runs.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("front")
    results = demo_study(
        folder / "results", (("single", 1, 0.5), ("ddp", 2, 0.6), ("zero3", 2, 0.9))
    )
    told = {"title": TITLE, "question": "Which is fastest?", "limits": "Invented steps."}
    study = {"study": "demo", "baseline": {"strategy": "single"}, "varies": ["strategy"]}
    write_json_atomic(folder / "results/demo/study.json", study | told)
    source = copied_sources(folder / "reports")
    outcome = build_report(results, folder / "site", engine="pandoc", source=source)
    assert outcome.problems == ()
    return folder / "site"


@pytest.fixture
def reader(browser, site) -> Reader:
    found = Reader(browser, site).open("index.html")
    found.console(), found.requests()  # what earlier tests left in the logs
    return found


def test_each_question_has_an_answer_and_its_page_is_one_click_away(reader):
    for asked, page in QUESTIONS.items():
        reader.open("index.html")
        boxes = "Array.from(document.querySelectorAll('.question'))"
        box = f"{boxes}.find(q => q.querySelector('h3').textContent === '{asked}')"
        assert len(reader.js(f"{box}.querySelector('p').textContent")) > 40, asked
        reader.driver.execute_script(f"{box}.querySelector('h3 a').click()")
        reader.wait(f"location.pathname.endsWith('/{page}.html')")


def test_a_card_has_the_answer_and_a_picture_and_leads_to_the_study(reader):
    card = "document.querySelector('.study')"
    assert "ddp trains gpt-tiny fastest" in reader.js(f"{card}.textContent")
    assert reader.js(f"{card}.querySelectorAll('svg rect').length") == 2
    assert "<script>" in reader.js(f"{card}.querySelector('h4').textContent"), "text stays text"
    reader.click(".study h4 a")
    reader.wait("location.pathname.endsWith('/study-demo.html')")
    assert reader.js("document.querySelector('.answer').textContent").startswith("ddp trains")
    assert "Invented steps." in reader.js("document.body.textContent")
    assert not reader.js("window.PWNED === 1")


def test_the_answer_of_a_study_stands_within_three_screens_of_the_first_fold_out(reader):
    reader.open("study-demo.html", 1280, 900)
    first = "document.querySelector('details').getBoundingClientRect().top + scrollY"
    answer = "document.querySelector('.answer').getBoundingClientRect().bottom + scrollY"
    assert reader.js(answer) < 900 and reader.js(first) < 3 * 900
    assert reader.js("document.querySelectorAll('#tbl-runs-demo').length") == 1
    assert not reader.js("document.querySelector('#tbl-runs-demo').checkVisibility()")


@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_a_phone_and_ask_for_nothing_outside(reader, page):
    reader.open(f"{page}#a=0&b=1" if page == "compare.html" else page, 390)
    assert reader.js("document.documentElement.scrollWidth") <= 390
    reader.open(page, 1280)
    assert {urlparse(url).scheme for url in reader.requests()} <= {"file", "data", "about", "blob"}
    assert reader.console() == []


def test_a_study_with_a_long_title_leaves_compare_within_a_phone(reader):
    reader.open("compare.html", 390)
    reader.js(
        "document.querySelector('#compare-study option').textContent = 'A long title '.repeat(9)"
    )
    assert reader.js("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("page", PAGES)
def test_a_table_of_eight_columns_fits_paper(reader, page):
    """A4 at 96 dots per inch, with margins of a centimetre. Each table gets columns until there are
    eight; a text of two words is as long as most that tables hold.
    """
    reader.open(page, 718)
    reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        reader.js(
            "document.querySelectorAll('.table-scroll tr').forEach(row => {"
            " while (row.cells.length < 8) row.insertCell().textContent = 'recompute selective' })"
        )
        assert reader.js("document.documentElement.scrollWidth") <= 718
    finally:
        reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


PRINTED = ["models.html", "advice.html", "plan.html", "generations.html", "goodput.html"]


@pytest.mark.parametrize("page", [*PAGES, *PRINTED])
def test_no_page_is_wider_than_its_paper(reader, page):
    reader.open(page, 718)
    reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        reader.driver.execute_script("dispatchEvent(new Event('beforeprint'))")
        assert reader.js("document.documentElement.scrollWidth") <= 718
    finally:
        reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_what_scrolls_on_a_phone_is_reached_by_the_keyboard(reader, site):
    run = next(site.glob("runs/*.html")).relative_to(site)
    for page in ("methods.html", str(run)):
        reader.open(page, 390)
        boxes = "Array.from(document.querySelectorAll('pre, math[display=block]'))"
        scrolls = f"{boxes}.filter(box => box.scrollWidth > box.clientWidth + 1)"
        assert reader.js(f"{scrolls}.length") > 0, page
        assert reader.faults() == {}, page
        reader.open(page, 1280)
        assert reader.js(f"{boxes}.every(b => b.tabIndex < 0 || b.scrollWidth > b.clientWidth)")


def test_what_scrolls_in_a_tab_is_reached_once_the_tab_is_open(reader, site):
    """A panel that is not open has no size, so that nothing tells whether it will scroll."""
    run = next(site.glob("runs/*.html")).relative_to(site)
    reader.open(str(run), 390)
    box = "document.querySelector('pre')"
    for display, stops in (("none", "tabIndex < 0"), ("block", "tabIndex === 0")):
        reader.driver.execute_script(f"{box}.style.display = '{display}'")
        reader.wait(f"{box}.{stops}")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_no_fault_also_in_what_is_folded(reader, page, theme):
    # what a page stores may reach the process of the next after it has opened
    for _ in range(4):
        reader.driver.execute_script("localStorage.setItem('llmbench-theme', arguments[0])", theme)
        reader.open(page, 1280)
        if reader.js("document.documentElement.dataset.theme") == theme:
            break
    reader.js("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    assert reader.js("document.documentElement.dataset.theme") == theme
    if reader.js("document.querySelector('.vega-chart')"):
        reader.wait("document.querySelector('.vega-chart[data-drawn]')")
    assert reader.faults() == {}


def test_axe_finds_the_faults_that_a_page_has(reader):
    reader.open("history.html")
    reader.driver.execute_script(
        "document.querySelector('main').innerHTML += '<img src=\"data:,\">' +"
        '\'<div role="img" aria-label="x"><button>menu</button></div>\''
    )
    assert {"image-alt", "nested-interactive"} <= set(reader.faults())


def test_what_is_folded_is_printed_and_folded_again(reader):
    reader.open("study-demo.html", 1280)
    # the menu of a chart is a fold, too, and comes when the chart is drawn
    shut = "document.querySelectorAll('details:not([open]):not(.vega-chart *)').length"
    before = reader.js(shut)
    reader.driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert before > 0 and reader.js("document.querySelector('#tbl-runs-demo').checkVisibility()")
    reader.driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert reader.js(shut) == before


PRESS = "document.querySelector('button[aria-label^=\"{}\"]').click()"
SAID = "document.querySelector('.compare-said').textContent"
ROWS = "document.querySelectorAll('.compare-row').length"


def test_two_sets_side_by_side_with_the_claim_of_the_command(reader):
    reader.open("compare.html")
    assert reader.js(ROWS) == 3 and not reader.js("document.querySelector('.compare-said')")
    reader.driver.execute_script(PRESS.format("A: ddp"))
    reader.driver.execute_script(PRESS.format("B: zero3"))
    assert reader.js(SAID).startswith("Claimed: ddp · 2 ranks trains 1.4")
    assert reader.js("location.hash").count("=") == 2
    reader.driver.refresh()
    assert reader.js(SAID).startswith("Claimed: ddp"), "the address holds the choice"
    assert reader.faults() == {}, "also in the table of two sets, whose headings sort"
    shell = reader.js("document.querySelector('.compare-two code').textContent")
    assert re.fullmatch(
        r"llmbench compare( spec_hash=\w+,framework=llmbench){2} --where \S+ --results DIR", shell
    )
    reader.driver.execute_script(PRESS.format("B: zero3"))
    reader.driver.execute_script(PRESS.format("B: single"))
    assert reader.js(SAID).startswith("No claim"), "unequal ranks"


def pick(reader: Reader, name: str, value: str) -> None:
    box = f"document.getElementById('compare-{name}')"
    reader.driver.execute_script(f"{box}.value = '{value}'; {box}.onchange; "
                                 f"{box}.dispatchEvent(new Event('change'))")  # fmt: skip


def test_pickers_filter_and_choose_the_metric_and_keep_the_focus(reader):
    reader.open("compare.html")
    pick(reader, "world_size", "2")
    assert reader.js(ROWS) == 2
    pick(reader, "metric", "step_time_s")
    first = "document.querySelector('.compare-row').textContent"
    assert "ddp" in reader.js(first), "the shortest step first"
    at = "parseFloat(document.querySelectorAll('.compare-dot')[0].style.left)"
    linear = reader.js(at)
    pick(reader, "axis", "log")
    assert reader.js(at) < linear / 2 and reader.js(ROWS) == 2
    reader.driver.execute_script("document.getElementById('compare-metric').focus()")
    pick(reader, "metric", "tokens_per_s")
    assert reader.js("document.activeElement.id") == "compare-metric"
