"""A package that is not ours brings a format: an installed entry point, found by the command."""

import json
import os
import subprocess
import sys
import textwrap

MODULE = """
import json

from llmbench.importers.base import Draft
from llmbench.importers.formats import Format


def read(source, tally):
    draft = Draft("mine", "my trainer")
    for row in json.loads(source.path.read_text())["steps"]:
        tally.understood += 1
        draft.row(row["step"], {"time_s": row["seconds"], "loss": row["loss"]})
    return [draft]


MINE = Format("mine", "JSON of my trainer", read, detect=lambda sample: b'"my-trainer"' in sample)
"""


def test_an_installed_package_brings_a_format(tmp_path):
    package, about = tmp_path / "site", tmp_path / "site/mine-1.0.dist-info"
    about.mkdir(parents=True)
    (package / "mine.py").write_text(textwrap.dedent(MODULE))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[llmbench.importers]\nmine = mine:MINE\nbroken = mine:NO_SUCH_NAME\n"
    )
    rows = [{"step": n, "seconds": 0.5, "loss": 4.0 - n / 10} for n in range(6)]
    (tmp_path / "log.json").write_text(json.dumps({"by": "my-trainer", "steps": rows}))
    command = [sys.executable, "-m", "llmbench.cli", "import", "log.json", "--results", "out"]
    environ = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = json.loads(next((tmp_path / "out").rglob("run.json")).read_text())
    assert run["source"]["format"] == "mine" and run["steps"]["time_s"] == [0.5] * 6
    assert "mine:NO_SUCH_NAME is left out" in done.stderr, "the broken one is named"
