"""The built-in renderer's pages in a real browser, opened as files: no server, no network."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlparse

import pytest
from browsers import Reader, wait

from llmbench.analysis.cost import Price
from llmbench.core.glossary.table import heading_entry
from llmbench.report.charts import chart_html
from llmbench.report.markup import rendered
from llmbench.report.parts import table_md
from llmbench.report.published.costs import COST_COLUMNS
from llmbench.report.site.navigation import NavItem, nav_html
from llmbench.report.site.renderer import render_site
from llmbench.spec.params import read_yaml

ROOT = Path(__file__).resolve().parent.parent

PRICES = {"x": 1.5, "y": 3.0}
COSTS = rendered(
    "prices.md",
    paid=1.5,
    device="A10",
    currency="USD",
    offers=[
        Price(
            device="A10",
            price_per_hour=hourly,
            currency="USD",
            as_of="2026-11",
            source="s",
            provider=who,
        )
        for who, hourly in PRICES.items()
    ],
    terms={"on_demand": "on demand"},
    rows=[
        {
            "run": run,
            "usd_per_1m_tokens": usd,
            "usd_per_1m_tokens_low": usd - 0.5,
            "usd_per_1m_tokens_high": usd + 0.5,
        }
        for run, usd in {"ddp": 2.0, "fsdp": 3.5}.items()
    ],
)

LOAD = "llama3.1-8b_bf16"
CARDS = table_md(
    [
        dict.fromkeys([f"usd_per_hour{end}" for end in ("_low", "_high")])
        | {"card": card, "usd_per_hour": hourly, f"{LOAD}_usd": usd, f"{LOAD}_rate": rate}
        | dict.fromkeys([f"{LOAD}_{end}" for end in ("low", "high", "usd_low", "usd_high")])
        | {f"{LOAD}_rows": 3, f"{LOAD}_publishers": 2}
        for card, hourly, rate, usd in (("A", 3.6, 1000.0, 1.0), ("B", None, 500.0, None))
    ],
    COST_COLUMNS[:4],
    label="cards",
    caption="Costs",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    source = folder / "report"
    shutil.copytree(ROOT / "tests" / "site_fixture", source)
    shutil.copytree(ROOT / "reports" / "_theme", source / "_theme")
    with (source / "features.qmd").open("a", encoding="utf-8") as page:
        page.write(f"\n{COSTS}\n\n::: {{.card-prices}}\n{CARDS}:::\n")
    return render_site(source, folder / "published", engine="pandoc")


@pytest.fixture
def reader(browser, site) -> Reader:
    found = Reader(browser, site).open("index.html")
    browser.execute_script("localStorage.clear()")
    found.console(), found.requests()  # what earlier tests left in the logs
    return found


PAGES = ["index.html", "features.html", "runs/one.html"]
MARKS = "document.querySelectorAll('#chart-{} .role-mark path').length"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_errors_and_requests_nothing_from_the_network(reader, page):
    reader.open(page)
    if page != "runs/one.html":
        reader.wait("document.querySelector('.vega-chart svg') !== null")
    asked = reader.requests()
    assert any(url.endswith("site.js") for url in asked), (
        "the log of requests is empty, so it proves nothing"
    )
    assert {urlparse(url).scheme for url in asked} <= {"file", "data", "about", "blob"}, asked
    timed = reader.js("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert all(url.startswith(("file://", "data:")) for url in timed), timed
    assert reader.console() == []


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [390, 768, 1000, 1400])
def test_no_page_is_wider_than_the_screen(reader, page, width):
    reader.open(page, width)
    if page != "runs/one.html":
        reader.wait("document.querySelector('.vega-chart svg') !== null")
    assert reader.js("document.documentElement.scrollWidth") <= width
    wide = reader.js(
        "Array.from(document.querySelectorAll('.table-scroll')).every(box => "
        "box.getBoundingClientRect().right <= innerWidth + 1)"
    )
    assert wide, "a table sticks out of its column"


def _item(entry):
    return NavItem(entry["text"], entry.get("href"), tuple(map(_item, entry.get("menu", ()))))


OPENED = """Array.from(document.querySelectorAll('.site-nav summary')).map(summary => {
  summary.click();
  const open = document.querySelectorAll('.site-nav details[open]');
  const links = Array.from(summary.parentElement.querySelectorAll('a'));
  const inside = box => box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight;
  const seen = link => {
    const box = link.getBoundingClientRect();
    return inside(box) && document.elementFromPoint(box.left + 4, box.top + 4) === link;
  };
  return open.length === 1 && links.length > 1 && links.every(seen);
})"""
HEADER = "document.querySelector('.site-header').offsetHeight"


@pytest.mark.parametrize(
    "width,height", [(390, 125), (800, 100), (1100, 100), (1280, 60), (1700, 60)]
)
def test_every_page_of_the_navigation_is_reached(reader, width, height):
    """The report's navigation in the frame of the site: each menu opens alone, and all of its pages
    can be clicked. The header stays as low as it is said to be.
    """
    reader.open("index.html", width)
    entries = read_yaml(ROOT / "reports/_quarto.yml")["website"]["navbar"]["left"]
    links = nav_html(map(_item, entries), SimpleNamespace(path="x.qmd", root=""), menus=True)
    assert reader.js(f"(document.querySelector('.site-nav > ul').innerHTML = {links!r}, true)")
    opened = reader.js(OPENED)
    assert len(opened) == sum("menu" in entry for entry in entries) > 3 and all(opened), opened
    assert reader.js(HEADER) <= height
    assert reader.js("document.documentElement.scrollWidth") <= width


def test_the_long_name_of_a_log_breaks_on_a_phone(reader):
    reader.open("index.html", 390)
    name = "v5.1_NVIDIA_theia8_gb300_" * 4
    text = f"<ul><li><strong>{name}</strong> is not shown</li></ul><p>{name}</p><h2>{name}</h2>"
    content = "document.querySelector('main .content')"
    reader.js(f"{content}.insertAdjacentHTML('beforeend', {text!r})")
    assert reader.js(f"{content}.textContent.includes('theia8')")
    assert reader.js("document.documentElement.scrollWidth") <= 390


def test_a_menu_closes_by_escape_and_by_a_click_elsewhere(reader):
    reader.open("index.html", 1280)
    menu = "document.querySelector('.site-nav details')"
    assert reader.js(f"({menu}.querySelector('summary').click(), {menu}.open)")
    reader.js(f"{menu}.querySelector('a').focus()")
    reader.driver.switch_to.active_element.send_keys("\ue00c")  # Escape
    summary = f"document.activeElement === {menu}.querySelector('summary')"
    assert reader.js(f"!{menu}.open && {summary}")
    reader.js(f"{menu}.querySelector('summary').click()")
    assert not reader.js(f"(document.querySelector('main').click(), {menu}.open)")


def test_a_chart_has_marks_and_fills_its_column(reader):
    reader.open("index.html")
    assert reader.wait(MARKS.format("throughput")) >= 5
    box, drawing = reader.js(
        "['#chart-throughput', '#chart-throughput svg']"
        ".map(s => document.querySelector(s).getBoundingClientRect().width)"
    )
    assert 0.97 * box < drawing <= box + 1


LONG = {
    "data": {
        "values": [
            {"run": "gpt124m-mb32-recompute", "v": 4, "part": "computing and the rest of the step"},
            {"run": "llama1b", "v": 9, "part": "waiting", "words": "9 (interval to 4,507, at most 9,363)"},
        ]
    },
    "encoding": {
        "y": {"field": "run", "type": "nominal", "title": None},
        "x": {
            "field": "v",
            "type": "quantitative",
            "title": ["Break-even price of the new card", "(USD per hour and card of it)"],
        },
    },
    "layer": [
        {
            "mark": "bar",
            "encoding": {
                "color": {
                    "field": "part",
                    "legend": {"orient": "top", "columns": 1, "labelLimit": 240},
                }
            },
        },
        {"mark": {"type": "text", "align": "left"}, "encoding": {"text": {"field": "words"}}},
    ],
    "height": {"step": 32},
}  # fmt: skip
CUT_OFF = """Array.from(document.querySelectorAll('svg.marks text')).filter(text => {
  const place = text.getBoundingClientRect(), edge = text.closest('svg').getBoundingClientRect();
  return place.right > edge.right + 1 || place.left < edge.left - 1;
}).map(text => text.textContent)"""


def test_a_phone_cuts_off_no_words_of_a_chart(tmp_path, browser):
    source = tmp_path / "report"
    shutil.copytree(ROOT / "reports" / "_theme", source / "_theme")
    (source / "_quarto.yml").write_text("website: {title: x}\n")
    block = f"`````{{=html}}\n{chart_html('long', LONG)}\n`````\n"
    (source / "index.qmd").write_text(f"---\ntitle: i\n---\n\n{block}")
    site = render_site(source, tmp_path / "site", engine="pandoc")
    reader = Reader(browser, site).open("index.html", 390)
    reader.wait("document.querySelector('.vega-chart[data-drawn] svg.marks') !== null")
    assert reader.js(CUT_OFF) == []
    assert reader.js("document.querySelectorAll('svg.marks .role-legend tspan').length") == 2
    plot = "document.querySelector('svg.marks .root path.background').getBBox().width"
    assert reader.js(plot) >= 90, "words leave room to the bars"


def test_a_chart_in_a_closed_tab_is_drawn_when_the_tab_opens(reader):
    reader.open("features.html")
    assert reader.wait(MARKS.format("scaling"))
    assert reader.js(MARKS.format("ranks")) == 0
    reader.click("#tab-1-2")
    assert reader.wait(MARKS.format("ranks")) >= 15
    assert reader.js("document.querySelector('#tab-1-1').getAttribute('aria-selected')") == "false"


def test_dark_mode_recolours_page_and_chart_and_is_remembered(reader):
    label = "document.querySelector('#chart-throughput .role-axis-label text').getAttribute('fill')"
    paper, theme = (
        "getComputedStyle(document.body).backgroundColor",
        "document.documentElement.dataset.theme",
    )
    reader.open("index.html")
    reader.wait("document.querySelector('#chart-throughput[data-drawn=light]') !== null")
    light = reader.js(label), reader.js(paper)
    reader.click("#theme-switch")
    reader.wait("document.querySelector('#chart-throughput[data-drawn=dark]') !== null")
    dark = reader.js(label), reader.js(paper)
    assert light[0] != dark[0] and light[1] != dark[1]

    def next_page_is_dark(_) -> bool:
        if reader.open("features.html").js(theme) == "dark":
            return True
        # On a busy machine Chromium now and then opens a file without its storage: no other page
        # sees what such a page stores. So the reader chooses again, on a page opened anew.
        if reader.open("index.html").js(theme) == "light":
            reader.click("#theme-switch")
        return False

    wait(reader.driver, next_page_is_dark, 30, "the next page never opened dark")
    assert reader.js(paper) == dark[1]


def test_a_typed_price_rescales_the_costs_and_their_bars(reader):
    reader.open("features.html")
    amounts = "Array.from(document.querySelectorAll('.own-price .amount'), a => a.textContent)"
    widths = (
        "Array.from(document.querySelectorAll('.cost-value'), b =>"
        " b.getBoundingClientRect().width / b.parentElement.getBoundingClientRect().width)"
    )
    assert reader.js(amounts) == ["2 (1.5 to 2.5) USD", "3.5 (3 to 4) USD"]
    listed = reader.js(widths)  # the axis ends at the highest cost at the highest listed price, 8
    assert listed == pytest.approx([2 / 8, 3.5 / 8], abs=0.01)
    box = reader.driver.find_element("css selector", ".own-price input")
    box.clear()
    box.send_keys("0.75")
    assert reader.js(amounts) == ["1 (0.75 to 1.25) USD", "1.75 (1.5 to 2) USD"]
    assert reader.js(widths) == pytest.approx([v / 2 for v in listed], abs=0.01)
    box.clear()  # while no price stands there, the last one counts
    assert reader.js(amounts)[0] == "1 (0.75 to 1.25) USD"
    reader.click(".own-price li:nth-child(2) button")
    assert reader.js("document.querySelector('.own-price input').value") == "3"
    assert reader.js(amounts) == ["4 (3 to 5) USD", "7 (6 to 8) USD"]
    assert reader.js("document.querySelector('.own-price').textContent").count("2026-11") == 2


def test_a_typed_price_of_a_card_sets_the_costs_of_its_line(reader):
    reader.open("features.html")
    costs = "Array.from(document.querySelectorAll('.per-million'), cost => cost.textContent)"
    assert reader.js(costs) == ["1.00", "–"], "at the listed price, and where none is listed"
    first, second = reader.driver.find_elements("css selector", ".card-prices input")
    assert first.get_attribute("value") == "3.6" and "Price of B" in second.accessible_name
    second.send_keys("0.9")
    assert reader.js(costs) == ["1.00", "0.500"]
    first.clear()
    assert reader.js(costs) == ["–", "0.500"]


def test_search_finds_a_word_of_another_page(reader):
    reader.open("index.html")
    box = reader.driver.find_element("id", "search-input")
    box.send_keys("quokka")
    reader.wait("document.querySelectorAll('#search-results a').length === 1")
    reader.driver.find_element("css selector", "#search-results a").click()
    reader.wait(
        "location.pathname.endsWith('runs/one.html') && document.querySelector('h1').textContent"
        " === 'Run one'"
    )
    box = reader.driver.find_element("id", "search-input")
    box.send_keys("zyzzyva")
    reader.wait("document.querySelector('#search-results').textContent.startsWith('Nothing found')")


def test_a_table_is_sorted_by_number_with_unknown_values_last(reader):
    reader.open("index.html")
    column = (
        "Array.from(document.querySelectorAll('#tbl-results tbody tr')).map(row =>"
        " row.cells[2].textContent)"
    )
    button = "#tbl-results th:nth-child(3) .sort-button"
    reader.click(button)
    assert reader.js(column) == ["4,734", "5,057", "5,219", "5,380", "–"]
    reader.click(button)
    assert reader.js(column) == ["5,380", "5,219", "5,057", "4,734", "–"]
    assert (
        reader.js(
            "getComputedStyle(document.querySelector('#tbl-results td:nth-child(3)')).textAlign"
        )
        == "right"
    )


def test_a_term_in_a_header_is_a_link_beside_the_button_that_sorts(tmp_path, browser):
    anchor = heading_entry("MFU (%)").anchor
    source = tmp_path / "report"
    shutil.copytree(ROOT / "reports" / "_theme", source / "_theme")
    (source / "_quarto.yml").write_text("website: {title: x}\n")
    (source / "glossary.qmd").write_text(f"---\ntitle: g\n---\n\n[MFU]{{#{anchor}}}\n")
    table = "| Odd | MFU (%) |\n|---|---|\n| a | 9 |\n| b | 10 |\n| c | 2 |\n"
    (source / "index.qmd").write_text(f"---\ntitle: i\n---\n\n{table}")
    site = render_site(source, tmp_path / "site", engine="pandoc")
    reader = Reader(browser, site).open("index.html")
    reader.click("th:nth-child(2) .sort-button")
    cells = "Array.from(document.querySelectorAll('tbody tr')).map(row => row.cells[1].textContent)"
    assert reader.js(cells) == ["2", "9", "10"]
    assert reader.js("document.querySelectorAll('button a, th:nth-child(1) a').length") == 0
    reader.click("th:nth-child(2) a.term")
    reader.wait(f"location.hash === '#{anchor}' && location.pathname.endsWith('glossary.html')")


def test_the_keyboard_reaches_the_text_first(reader):
    reader.open("index.html")
    reader.driver.switch_to.active_element.send_keys("\ue004")  # Tab
    assert reader.js("document.activeElement.className") == "skip-link"
    assert reader.js("getComputedStyle(document.activeElement).outlineStyle") != "none"


CONTRAST = """(() => {
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const rgb = name => { const probe = document.createElement('i'); document.body.append(probe);
    probe.style.color = `var(${name})`; const value = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number);
    probe.remove(); return value; };
  const ratio = (a, b) => { const [x, y] = [luminance(rgb(a)), luminance(rgb(b))].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05); };
  const pairs = [['--ink', '--paper'], ['--muted', '--paper'], ['--muted', '--panel'], ['--muted', '--panel-strong'],
    ['--faint', '--paper'], ['--accent', '--paper'], ['--accent', '--accent-soft'], ['--good', '--good-soft'],
    ['--bad', '--bad-soft'], ['--warn', '--warn-soft'], ['--special', '--special-soft'], ['--code-keyword', '--panel'],
    ['--code-string', '--panel'], ['--code-number', '--panel'], ['--code-comment', '--panel'],
    ['--code-function', '--panel']];
  return pairs.filter(([a, b]) => ratio(a, b) < 4.5).map(([a, b]) => `${a} on ${b}: ${ratio(a, b).toFixed(2)}`);
})()"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_colour_has_the_contrast_of_wcag_aa(reader, theme):
    reader.open("index.html").driver.execute_script(
        f"document.documentElement.dataset.theme = '{theme}'"
    )
    assert reader.js(CONTRAST) == []
