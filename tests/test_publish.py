"""What `llmbench publish` writes, in a real browser: from a disk and below a path of a server,
under its policy, without a request to elsewhere.
"""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import pytest
from browsers import Reader
from test_report import copied_sources

from llmbench.core.errors import LlmbenchError
from llmbench.core.examples import refused
from llmbench.plan.examples import demo_study
from llmbench.report.build import build_report
from llmbench.report.publishing.edition import check_published, known_editions, publish_site
from llmbench.report.publishing.links import site_files

PAGES = ["index.html", "study-demo.html", "compare.html", "plan.html", "runs.html", "history.html"]
SETS = (("single", 1, 0.5), ("ddp", 2, 0.6), ("zero3", 2, 0.9))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("publish")
    results = demo_study(folder / "results", SETS)
    source = copied_sources(folder / "reports")
    build_report(results, folder / "site", engine="pandoc", source=source)
    return folder / "site"


@pytest.fixture(scope="module")
def public(site, tmp_path_factory) -> Path:
    """Two editions, below a path that a server has."""
    folder = tmp_path_factory.mktemp("served") / "some/path"
    publish_site(site, folder, "2026-11-24", "https://example.org/some/path")
    publish_site(site, folder, "2026-11-25", "https://example.org/some/path")
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """The log of a test is not the place for requests."""


@pytest.fixture(scope="module")
def served(public) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(public.parent.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/some/path"
    server.shutdown()
    server.server_close()


@pytest.fixture
def reader(browser, public) -> Reader:
    found = Reader(browser, public)
    found.console(), found.requests()  # what earlier tests left in the logs
    return found


def every_page(public: Path) -> list[str]:
    runs = sorted(p.name for p in (public / "latest/runs").glob("*.html"))[:1]
    return [*PAGES, *(f"runs/{name}" for name in runs)]


def drawn(reader: Reader) -> None:
    """Wait until the charts of a page are drawn, if it has any, and the picker is there."""
    has = "document.querySelector('script[data-chart]') !== null"
    reader.wait(f"!({has}) || document.querySelector('.vega-chart svg') !== null")
    reader.wait("document.querySelectorAll('#llmbench-edition option').length === 2")


def test_every_page_works_under_its_policy_from_a_disk(reader, public):
    charts = 0
    for page in every_page(public):
        reader.open(f"latest/{page}")
        drawn(reader)
        charts += reader.js("document.querySelectorAll('.vega-chart svg').length")
        assert reader.console() == [], page
        asked = reader.requests()
        assert any(url.endswith("edition.js") for url in asked), "an empty log proves nothing"
        assert {urlparse(url).scheme for url in asked} <= {"file", "data", "about", "blob"}, asked
    assert charts >= 3


def test_every_page_works_below_a_path_of_a_server(reader, public, served):
    for page in every_page(public):
        reader.driver.get("about:blank")
        reader.driver.get(f"{served}/2026-11-24/{page}")
        drawn(reader)
        assert reader.console() == [], page
        asked = [
            url for url in reader.requests() if not url.startswith(("data:", "about:", "blob:"))
        ]
        assert asked and all(url.startswith(f"{served}/") for url in asked), asked


def test_the_policy_stops_what_somebody_adds(reader, public, tmp_path):
    """A script and a request that are not of the site: neither happens, and the console says so."""
    page = public / "latest/index.html"
    text = page.read_text()
    added = "<script>window.PWNED=1; fetch('http://127.0.0.1:9/x')</script>"
    (public / "latest/planted.html").write_text(text.replace("</body>", f"{added}</body>"))
    try:
        reader.open("latest/planted.html")
        reader.wait("document.querySelector('#llmbench-edition option') !== null")
        assert reader.js("window.PWNED === undefined")
        assert any("Content Security Policy" in line for line in reader.console())
        assert "latest/planted.html: not in SHA256SUMS" in check_published(public)
    finally:
        (public / "latest/planted.html").unlink()


@pytest.mark.parametrize("how", ["disk", "server"])
def test_the_picker_leads_to_the_same_page_of_an_earlier_edition(reader, public, served, how):
    start = public.as_uri() if how == "disk" else served
    reader.driver.get(f"{start}/latest/compare.html")
    drawn(reader)
    assert reader.js("document.querySelector('#llmbench-edition select').value") == "2026-11-25"
    pick = "const s=document.querySelector('#llmbench-edition select');s.value='2026-11-24';"
    reader.driver.execute_script(f"{pick}s.dispatchEvent(new Event('change'))")
    reader.wait("location.pathname.endsWith('/2026-11-24/compare.html')")
    drawn(reader)
    reader.click("#llmbench-edition a")
    reader.wait("document.title === 'Editions'")
    assert reader.js("document.querySelectorAll('li a').length") == 2


def test_what_is_published_is_as_it_was_and_a_change_is_named(public):
    assert [e["edition"] for e in known_editions(public)] == ["2026-11-25", "2026-11-24"]
    assert check_published(public) == []
    page = public / "2026-11-24/compare.html"
    text = page.read_text()
    page.write_text(text + " ")
    try:
        assert check_published(public) == ["2026-11-24/compare.html: changed"]
    finally:
        page.write_text(text)


PLANTED = {
    "a broken link": ('<a href="gone.html">x</a>', "gone.html: there is no such file"),
    "a lost anchor": ('<a href="compare.html#gone">x</a>', "has no anchor gone"),
    "an outside image": ('<img src="https://a.example/p.png">', "would request it from elsewhere"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_site_that_cannot_be_published_changes_nothing(site, public, planted):
    text, why = PLANTED[planted]
    page = site / "methods.html"
    before, kept = (
        page.read_text(),
        {n: p.stat().st_mtime_ns for n, p in site_files(public).items()},
    )
    page.write_text(before.replace("</body>", f"{text}</body>"))
    try:
        call = functools.partial(publish_site, site, public, "2026-11-26")
        refused(call, "methods.html", why, error=LlmbenchError)
    finally:
        page.write_text(before)
    refused(functools.partial(publish_site, site, public, "2026-11-25"), "is published")
    assert {n: p.stat().st_mtime_ns for n, p in site_files(public).items()} == kept
    assert not [p.name for p in public.iterdir() if p.name.startswith(".")]
