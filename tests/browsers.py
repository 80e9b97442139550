"""Chromium for the tests that look at pages: how it starts, and what a test asks of a page."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NEEDED = "needs chromium and chromedriver (apt-get install chromium chromium-driver)"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


AXE = """const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((found) => done(Object.fromEntries(
  found.violations.map((fault) => [fault.id, fault.nodes.map((node) => node.html.slice(0, 200))]))));
"""


@contextmanager
def started(profile: Path) -> Iterator:
    """A browser with a profile of its own that logs its console and its requests; skips the test
    where there is none.
    """
    if not (CHROMIUM and DRIVER):
        pytest.skip(NEEDED)
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="needs selenium (pip install 'llmbench[browser]')"
    )
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def wait(driver, condition, within_s: float = 20, message: str = "") -> object:
    """What `condition(driver)` returns once it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, within_s).until(condition, message)


class Reader:
    """A browser on one page, with a function for each question of a test."""

    def __init__(self, driver, site: Path):
        self.driver, self.site = driver, site

    def open(self, page: str, width: int = 1400, height: int = 900) -> "Reader":
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get("about:blank")
        self.driver.get(f"{self.site.as_uri()}/{page}")
        return self

    def js(self, expression: str):
        return self.driver.execute_script(f"return {expression}")

    def wait(self, expression: str):
        return wait(self.driver, lambda _: self.js(expression), message=f"never true: {expression}")

    def click(self, selector: str) -> None:
        self.driver.execute_script("document.querySelector(arguments[0]).click()", selector)

    def faults(self) -> dict[str, list[str]]:
        """What axe finds on the page, best practices included: its rule, and where."""
        axe = pytest.importorskip("axe_core_python", reason="needs llmbench[browser]")
        self.driver.execute_script((Path(axe.__file__).parent / "axe.min.js").read_text())
        return self.driver.execute_async_script(AXE)

    def console(self) -> list[str]:
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def requests(self) -> list[str]:
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            e["params"]["request"]["url"]
            for e in events
            if e["method"] == "Network.requestWillBeSent"
        ]
