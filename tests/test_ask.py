"""The page SQL in Chromium: without an engine it says what to type; with DuckDB-WASM it answers."""

import ast
import json
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlparse

import pytest
from browsers import Reader, wait
from test_report import copied_sources

from llmbench.plan.examples import demo_study
from llmbench.report.build import build_report
from llmbench.report.publishing.policy import with_policy

ROOT = Path(__file__).resolve().parent.parent
SAID = "document.querySelector('.ask-said').textContent"
BOX = "document.querySelector('#ask textarea').value"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def served():
    """A function that serves a folder on loopback and returns its address."""
    servers = []

    def serve(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def site_in(folder: Path, engine: Path | None = None) -> Path:
    results = demo_study(folder / "results", (("single", 1, 0.5), ("ddp", 2, 0.6)))
    source = copied_sources(folder / "reports")
    built = build_report(
        results, folder / "under/site", engine="pandoc", source=source, duckdb_wasm=engine
    )
    assert built.problems == ()
    return built.out


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return site_in(tmp_path_factory.mktemp("plain"))


def opened(browser, address: str) -> Reader:
    browser.get("about:blank")
    browser.get(address)
    return Reader(browser, Path())


def test_a_figure_leads_to_its_query_and_the_page_says_what_it_needs(browser, plain, served):
    address = served(plain)
    reader = opened(browser, f"{address}/study-demo.html")
    link = reader.js(
        "Array.from(document.querySelectorAll('.sources a')).find(a => a.textContent === 'Ask').href"
    )
    reader = opened(browser, link)
    named = urlparse(link).query.removeprefix("of=")
    text = (plain / named).read_text()
    wait(browser, lambda _: reader.js(BOX).strip() == text.strip())
    assert "make duckdb-wasm" in reader.js(SAID)
    assert reader.js("document.querySelector('.ask-buttons button').disabled")
    assert reader.js("document.querySelector('#ask pre').textContent").startswith(
        "llmbench query '"
    )
    assert reader.faults() == {}


@pytest.mark.parametrize(
    "of", ["../secret.sql", "sql/../../x.sql", "https://example.org/x.sql", "sql/none.sql"]
)
def test_a_name_from_the_address_reads_no_other_file(browser, plain, served, of):
    address = served(plain.parent)
    (plain.parent / "secret.sql").write_text("SELECT 'secret'")
    reader = opened(browser, f"{address}/site/ask.html?of={quote(of)}")
    reader.wait("document.querySelector('#ask textarea')")
    reader.wait("document.querySelector('#ask pre').textContent !== ''")
    assert reader.js(BOX).startswith("SELECT strategy, world_size")


def test_a_query_of_the_address_is_text(browser, plain):
    told = "SELECT '<img src=x onerror=\"window.PWNED=1\">'"
    reader = opened(browser, f"{plain.as_uri()}/ask.html#q={quote(told)}")
    reader.wait("document.querySelector('#ask pre').textContent !== ''")
    assert reader.js(BOX) == told and not reader.js("window.PWNED === 1")


def test_the_notebook_of_a_query_runs(browser, plain, tmp_path):
    browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    told = "SELECT strategy,\n       'a\\b' AS text FROM runs"
    reader = opened(browser, f"{plain.as_uri()}/ask.html#q={quote(told)}")
    reader.wait("document.querySelector('#ask pre').textContent !== ''")
    reader.driver.execute_script(
        "Array.from(document.querySelectorAll('.ask-buttons button')).at(-1).click()"
    )
    file = tmp_path / "query.ipynb"
    wait(browser, lambda _: file.is_file())
    code = "".join(json.loads(file.read_text())["cells"][1]["source"])

    (call,) = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert ast.literal_eval(call.args[0]).strip() == told


@pytest.fixture(scope="module")
def engine() -> Path:
    """Two packages from the npm registry, bundled; skips without npm."""
    if not shutil.which("npm"):
        pytest.skip("needs npm (apt-get install npm)")
    subprocess.run(["make", "duckdb-wasm"], cwd=ROOT, check=True, capture_output=True, timeout=300)
    return ROOT / ".venv" / "duckdb-wasm"


@pytest.mark.slow
def test_queries_are_answered_in_the_browser_under_the_policy_of_an_edition(
    browser, tmp_path, served, engine
):
    site = site_in(tmp_path, engine)
    for page in site.glob("*.html"):
        page.write_text(with_policy(page.read_text(), page.name))
    address = served(site)
    queries = sorted(f.relative_to(site).as_posix() for f in (site / "sql/demo").glob("*.sql"))
    reader = opened(browser, f"{address}/ask.html?of={queries[0]}")
    reader.console(), reader.requests()
    failed = {}
    for name in queries:
        reader = opened(browser, f"{address}/ask.html?of={name}")
        text = (site / name).read_text().strip()
        wait(browser, lambda _, text=text, reader=reader: reader.js(BOX).strip() == text)
        reader.click(".ask-buttons button")
        reader.wait(f"!/Loading DuckDB|^$/.test({SAID})")
        rows = (
            len(
                (site / name.replace("sql/", "data/").replace(".sql", ".csv"))
                .read_text()
                .splitlines()
            )
            - 1
        )
        if not reader.js(SAID).startswith(f"{rows} rows"):
            failed[name] = reader.js(SAID)
    assert failed == {} and len(queries) > 8
    assert {urlparse(url).netloc for url in reader.requests() if url.startswith("http")} == {
        urlparse(address).netloc
    }
    assert reader.console() == []


@pytest.mark.slow
def test_a_wrong_query_says_why_and_no_query_reads_elsewhere(browser, tmp_path, served, engine):
    address = served(site_in(tmp_path, engine))
    for told, said in {
        "SELECT wrong FROM runs": "Referenced column",
        "SELECT * FROM 'https://example.org/x.csv'": "disabled",
        "LOAD json": "extension",
        "DROP TABLE runs": "read-only",
        "SELECT '<b onclick=1>x</b>' AS \"<i>y</i>\"": "1 rows",
        "SET enable_external_access = true": "locked",
    }.items():
        reader = opened(browser, f"{address}/ask.html#q={quote(told)}")
        reader.wait("document.querySelector('#ask pre').textContent !== ''")
        reader.click(".ask-buttons button")
        reader.wait(f"!/Loading DuckDB|^$/.test({SAID})")
        assert said in reader.js(SAID), (told, reader.js(SAID))
        assert not reader.js("document.querySelector('.ask-rows b, .ask-rows i')")
    hosts = {urlparse(url).netloc for url in reader.requests() if url.startswith("http")}
    assert hosts == {urlparse(address).netloc}
