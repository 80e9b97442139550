"""Run files of every version are read by what is there today; those of a newer one are refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from notebooks import ROOT

from llmbench.core.door import read_run
from llmbench.core.errors import LlmbenchError
from llmbench.core.versions.migration import FAMILY, NEWEST, STEPS, version_of
from llmbench.store.database import query

REAL = ROOT / "tests/data/run_files"  # one real file per version; of version 1 the first published


def typed(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "llmbench.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def stored(folder: Path, content: dict) -> Path:
    """A run file in a folder of results."""
    place = folder / content["study"] / content["run_id"] / "run.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(content))
    return place


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
def test_a_real_file_of_every_version_is_read(version, tmp_path):
    content = json.loads((REAL / f"version-{version}.json").read_text())
    assert version_of(content) == version
    run = read_run(REAL / f"version-{version}.json")
    assert run.run_id == content["run_id"] and run.schema_ == f"{FAMILY}{NEWEST}"
    stored(tmp_path, content)
    sql = "SELECT run_id, status, tokens_per_s > 0 FROM runs"
    assert query(tmp_path, sql)[1] == [(content["run_id"], "ok", True)]


def test_there_is_a_step_and_a_real_file_per_version():
    assert sorted(STEPS) == list(range(1, NEWEST))
    names = {f"version-{n}.json" for n in range(1, NEWEST + 1)}
    assert {p.name for p in REAL.iterdir()} == names


def test_a_newer_file_is_set_aside_with_what_to_type(tmp_path):
    """It is neither read as if it were of today, nor does it keep others from being read."""
    content = json.loads((REAL / f"version-{NEWEST}.json").read_text())
    stored(tmp_path, content)
    newer = {"run_id": "later.1", "schema": f"{FAMILY}{NEWEST + 1}", "of_tomorrow": [1]}
    place = stored(tmp_path, content | newer)
    before = place.read_bytes()
    with pytest.raises(LlmbenchError, match="pip install --upgrade llmbench"):
        read_run(place)
    ((problem,),) = query(tmp_path, "SELECT problem FROM quarantine")[1]
    assert "newer llmbench" in problem and "pip install --upgrade llmbench" in problem
    assert query(tmp_path, "SELECT count(*) FROM runs")[1] == [(1,)]
    done = typed("migrate", tmp_path, "--format", "json")
    assert done.returncode == 1, done.stderr
    assert sorted(row["outcome"][:6] for row in json.loads(done.stdout)) == ["newest", "schema"]
    assert place.read_bytes() == before


def test_migrate_refuses_what_is_no_run_file(tmp_path):
    (tmp_path / "run.json").write_text("<script>|")
    done = typed("migrate", tmp_path, "--format", "markdown")
    assert done.returncode == 1 and "not JSON" in done.stdout
    wrong = [typed("migrate"), typed("migrate", tmp_path / "nowhere"), typed("migrate", "--dry")]
    assert [w.returncode for w in wrong] == [2, 2, 2]
    assert all(w.stderr.count("\n") == 1 for w in wrong), [w.stderr for w in wrong]
