"""A sweep does not trust its folder: who else is in it, what a file there says, where a link
leads.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from notebooks import ROOT
from pretended import STUDY, swept

from llmbench.core.errors import LlmbenchError, RequestError
from llmbench.core.records import read_run
from llmbench.launch.sweep.sheet import SheetRequest, make_room
from llmbench.launch.sweep.sweep import locked
from llmbench.spec.request import run_id
from llmbench.spec.study import resolve_study


def test_a_sweep_that_is_refused_writes_nothing(tmp_path):
    """The second one has another title, baseline and repeats; the first one's study.json stays as
    it is.
    """
    swept(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with (
        locked(tmp_path / "s"),
        pytest.raises(LlmbenchError, match="another sweep is running in s"),
    ):
        swept(tmp_path, title="theirs", repeats=7, baseline={"strategy": "single"})
    after = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert sorted(after) == sorted(before)
    assert [str(p.relative_to(tmp_path)) for p in after if after[p] != before[p]] == []
    swept(tmp_path, title="theirs")
    assert json.loads((tmp_path / "s/study.json").read_text())["title"] == "theirs"


def test_a_launch_of_the_study_waits_for_the_sweep_too(tmp_path, capsys):
    from llmbench.cli.main import main

    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(STUDY))
    with locked(tmp_path / "s"):
        assert (
            main(
                [
                    "launch",
                    "ssh",
                    str(file),
                    "--submit",
                    "--results",
                    str(tmp_path),
                    "-s",
                    "hosts=left",
                    "-s",
                    "shell=false",
                ]
            )
            == 1
        )
    assert "another sweep" in capsys.readouterr().err and not (tmp_path / "s/study.json").exists()


def test_a_link_is_not_written_through(tmp_path):
    """Of the lock, of the working folder, of the notebook, of a log that a resumed run would go on
    with.
    """
    victim, target = tmp_path / "victim", tmp_path / "target"
    victim.write_text("somebody's")
    target.mkdir()
    spec = resolve_study(STUDY).runs[1]
    request = SheetRequest(spec, 1, tmp_path / "r")
    place = tmp_path / "r/s"
    place.mkdir(parents=True)
    (place / ".lock").symlink_to(victim)
    with pytest.raises(LlmbenchError, match="it is a link"):
        swept(tmp_path / "r")
    (place / ".lock").unlink()
    os.mkfifo(place / ".lock")
    with pytest.raises(LlmbenchError, match="no regular file"):
        swept(tmp_path / "r")
    (place / ".lock").unlink()
    (place / ".partial").symlink_to(target)
    with pytest.raises(LlmbenchError, match="does not lie below"):
        make_room(request)
    (place / ".partial").unlink()
    (place / ".partial").mkdir()
    request.partial.symlink_to(target)
    (place / run_id(spec)).symlink_to(target)
    (place / "study.json").symlink_to(victim)
    outcome, asked = swept(tmp_path / "r")
    assert (
        outcome.exit_code == 0 and run_id(spec) in asked and not (place / run_id(spec)).is_symlink()
    )
    resumed = SheetRequest(spec, 1, tmp_path / "r", resume=True)
    (place / run_id(spec) / "stdout.log").symlink_to(victim)
    make_room(resumed)
    assert not (resumed.partial / "stdout.log").is_symlink()
    assert (
        victim.read_text() == "somebody's"
        and not list(target.iterdir())
        and not (place / "study.json").is_symlink()
    )


def test_a_folder_that_is_not_utf_8_is_refused_and_a_dash_is_a_name(tmp_path, monkeypatch):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    with pytest.raises(RequestError, match="not UTF-8"):
        swept(odd)
    assert not os.path.exists(odd)
    monkeypatch.chdir(tmp_path)
    assert swept("-x")[0].exit_code == 0 and (tmp_path / "-x/s/study.json").exists()


def cli(tmp_path, *words):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "llmbench.cli", *words],
        cwd=tmp_path,
        capture_output=True,
        timeout=200,
        env=env,
        check=False,
    )


def test_the_command_says_in_one_line_that_a_folder_is_not_utf_8(tmp_path):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(STUDY))
    done = cli(tmp_path, "sweep", "s.yaml", b"--results", b"r\xff")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"not UTF-8" in done.stderr, (
        done.stderr
    )


@pytest.mark.slow
def test_a_real_run_in_a_folder_that_begins_with_a_dash(tmp_path):
    """Through launcher and ranks, which are given the folder as an argument."""
    (tmp_path / "r.yaml").write_text(
        yaml.safe_dump({"study": "s", **STUDY["base"], "strategy": "ddp", "world_size": 2})
    )
    for name in ("nbs", "settings.ini"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = cli(tmp_path, "run", "r.yaml", "--results=-x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [read_run(p).status for p in Path(tmp_path, "-x").glob("s/s.*/run.json")] == ["ok"]
