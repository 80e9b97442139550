"""What coverage follows, how long the slow tests take, and a browser.

Coverage follows the tests and the notebooks, not the processes that they start. To trace the
import of torch in some three hundred ranks and launchers is a third of all the time that the tests
take. COVER=all follows them, too; then the strategies' figures are those of all their lines.
"""

import os
from pathlib import Path

import pytest
from rooms import MEASURED, minutes

FOLLOWED = os.environ.get("COVERAGE_PROCESS_CONFIG")  # what a new process needs to be followed
if os.environ.get("PYTEST_XDIST_WORKER") and os.environ.get("COVER") != "all":
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

SPENT_S: dict[str, float] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"after a run of slow tests, write the minutes of each file into {MEASURED.name}"
    parser.addoption("--minutes", action="store_true", help=text)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Set-up and end of a test count, too: a cluster takes longer to start than to test."""
    name = Path(report.location[0]).name
    SPENT_S[name] = SPENT_S.get(name, 0.0) + report.duration


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Keep what earlier runs measured of other files. `make notebooks` shows it."""
    if config.getoption("--minutes") and config.getoption("-m") == "slow" and SPENT_S:
        measured = minutes() | {name: f"{s / 60:.1f}" for name, s in SPENT_S.items()}
        rows = [f"{name},{value}" for name, value in sorted(measured.items())]
        MEASURED.write_text("\n".join(["file,minutes", *rows]) + "\n")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium for the tests of one file; only they need Selenium."""
    from browsers import started

    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver
