"""A package that is not ours brings a format: an installed entry point, found by the command."""

import json
import os
import subprocess
import sys
import textwrap

from llmbench.analysis.rates import run_rates

MODULE = """
import json

from llmbench.importers.base import Draft
from llmbench.importers.formats import Format


def read(source, tally):
    told = json.loads(source.path.read_text())
    draft = Draft("mine", "my trainer")
    draft.fact("spec.world_size", told["gpus"])
    draft.fact("spec.model.name", told["model"])
    for row in told["steps"]:
        tally.lines += 1
        tally.understood += 1
        facts = {"time_s": row["seconds"], "loss": row["loss"], "tokens": row["tokens"]}
        draft.row(row["step"], facts)
    return [draft]  # unknown facts are null


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
    rows = [{"step": n, "seconds": 0.5, "loss": 4.0 - n / 10, "tokens": 2048} for n in range(6)]
    told = {"by": "my-trainer", "gpus": 2, "model": "gpt-tiny", "steps": rows}
    (tmp_path / "log.json").write_text(json.dumps(told))
    command = [sys.executable, "-m", "llmbench.cli", "import", "log.json", "--results", "out"]
    environ = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = json.loads(next((tmp_path / "out").rglob("run.json")).read_text())
    assert run["source"]["format"] == "mine" and run["steps"]["time_s"] == [0.5] * 6
    assert "mine:NO_SUCH_NAME is left out" in done.stderr, "the broken one is named"
    assert run_rates(run)["tokens_per_s"] == 4096 and "6 of 6 lines" in run["events"][0]["text"]

    folder = tmp_path / "several"
    folder.mkdir()
    (folder / "cut.json").write_text(json.dumps(told)[:-40])
    (folder / "good.json").write_text(json.dumps(told))
    command[4:] = [str(folder), "--results", "both"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert len(list((tmp_path / "both").rglob("run.json"))) == 1 and done.returncode == 0
    assert "cut.json: importer mine:MINE failed: JSONDecodeError" in done.stderr
    assert "Traceback" not in done.stderr
