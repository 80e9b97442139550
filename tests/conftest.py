"""Whom coverage follows: the tests and the notebooks, not the processes that they start.

To trace the import of torch in some three hundred ranks and launchers is a third of all the time
that the tests take. COVER=all follows them, too; then the strategies' figures are those of all
their lines.
"""

import os

FOLLOWED = os.environ.get("COVERAGE_PROCESS_CONFIG")  # what a new process needs to be followed
if os.environ.get("PYTEST_XDIST_WORKER") and os.environ.get("COVER") != "all":
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
