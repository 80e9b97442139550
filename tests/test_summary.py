"""A study as one file to send, in a real browser: no request, no script, readable on a phone, in
the dark and on paper; whatever the texts of its runs are.
"""

import base64
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from browsers import Reader
from notebooks import ROOT

from llmbench.cli.sharing.summary_verb import FORMS, summary
from llmbench.plan.examples import demo_study

PWN = "<script>window.PWNED=1</script><img src=x onerror=window.PWNED=1> | ![](https://a.example/x) `x`"


def hostile_study(results: Path) -> None:
    """A study whose texts, and those of its runs, would be executed by a careless page."""
    demo_study(results)
    declared = results / "demo/study.json"
    study = json.loads(declared.read_text())
    study |= dict.fromkeys(("title", "question", "reading", "limits"), PWN)
    declared.write_text(json.dumps(study))
    for file in results.glob("demo/*/run.json"):
        run = json.loads(file.read_text())
        run["env"]["devices"] = [device | {"name": PWN} for device in run["env"]["devices"]]
        run["env"]["versions"] |= {"torch": PWN}
        file.write_text(json.dumps(run))


@pytest.fixture(scope="module")
def mailed(tmp_path_factory) -> Path:
    """Two studies in each form, as the verb writes them."""
    folder = tmp_path_factory.mktemp("mailed")
    hostile_study(folder / "results")
    places = {"cpu-splits": ROOT / "reports/published/cpu-splits", "demo": folder / "results"}
    for study, results in places.items():
        for ending in FORMS:
            assert summary(study, file=folder / f"{study}{ending}", results=results) == 0
    return folder


@pytest.fixture
def reader(browser, mailed) -> Reader:
    found = Reader(browser, mailed)
    found.console(), found.requests()  # what earlier tests left in the logs
    return found


PAGES = [f"{study}{form}" for study in ("cpu-splits", "demo") for form in (".html", ".slides.html")]
SHOWN = "[...document.images].every(i => i.complete && i.naturalWidth > 100)"


@pytest.mark.parametrize("page", PAGES)
def test_it_loads_nothing_and_executes_nothing(reader, mailed, page):
    reader.open(page)
    reader.wait(SHOWN)
    assert reader.js("document.images.length") >= 3
    assert reader.js("document.scripts.length") == 0 and reader.js("window.PWNED === undefined")
    asked = [url for url in reader.requests() if not url.startswith(("data:image/svg", "about:"))]
    assert asked == [(mailed / page).as_uri()], asked
    assert reader.console() == []
    if page.startswith("demo"):
        assert PWN in re.sub(r"\s+", " ", reader.js("document.body.innerText"))


@pytest.mark.parametrize("study", ["cpu-splits", "demo"])
def test_the_answer_comes_first_and_fits_a_phone(reader, study):
    reader.open(f"{study}.html", width=390, height=844)
    reader.wait(SHOWN)
    assert reader.js("document.documentElement.scrollWidth") <= 390
    top = reader.js("document.querySelector('strong').getBoundingClientRect().top")
    assert top < reader.js("document.images[0].getBoundingClientRect().top")
    assert "claimed" in reader.js("document.body.innerText")


def test_the_dark_and_paper(reader):
    colour = "getComputedStyle(document.body).backgroundColor"
    reader.open("cpu-splits.html")
    light = reader.js(colour)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        assert reader.js(colour) != light
        reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark | {"media": "print"})
        assert reader.js(colour) == light == "rgb(255, 255, 255)"
    finally:
        reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def pages_on_paper(reader: Reader) -> int:
    how = {"preferCSSPageSize": True, "printBackground": False}
    data = reader.driver.execute_cdp_cmd("Page.printToPDF", how)["data"]
    return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(data)))


@pytest.mark.parametrize("study", ["cpu-splits", "demo"])
def test_a_slide_fills_a_window_and_a_page(reader, study):
    """Nothing is cut off, Page Down leads to the next slide, and each is one printed page."""
    from selenium.webdriver.common.keys import Keys

    reader.open(f"{study}.slides.html", width=1280, height=720)
    reader.wait(SHOWN)
    heights = reader.js("[...document.querySelectorAll('section')].map(s => s.offsetHeight)")
    assert len(heights) >= 7 and set(heights) == {720}, heights
    assert reader.js("document.documentElement.scrollWidth") <= 1280
    reader.driver.find_element("tag name", "body").send_keys(Keys.PAGE_DOWN)
    at = "document.querySelectorAll('section')[1].getBoundingClientRect().top"
    reader.wait(f"Math.abs({at}) < 2")
    assert pages_on_paper(reader) == len(heights)


@pytest.mark.parametrize("study", ["cpu-splits", "demo"])
def test_powerpoint_slides_are_whole_and_link_to_nothing(mailed, study):
    with zipfile.ZipFile(mailed / f"{study}.pptx") as found:
        assert found.testzip() is None
        names = found.namelist()
        for name in names:
            if name.endswith((".xml", ".rels")):
                tree = ElementTree.fromstring(found.read(name))
                outside = [e for e in tree.iter() if e.get("TargetMode") == "External"]
                assert not outside, name
    pictures = [n for n in names if n.startswith("ppt/media/")]
    slides = [n for n in names if re.fullmatch(r"ppt/slides/slide\d+\.xml", n)]
    assert len(pictures) >= 3 and len(slides) >= len(pictures) + 3


def test_a_wrong_request_writes_nothing(tmp_path):
    command = [sys.executable, "-m", "llmbench.cli", "summary", "cpu-spilts"]
    results = ROOT / "reports/published/cpu-splits"
    more = ["--results", results, "--out", tmp_path / "x.html"]
    done = subprocess.run([*command, *more], capture_output=True, text=True)
    assert done.returncode == 2 and "cpu-splits" in done.stderr and done.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]
