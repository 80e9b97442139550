"""The comparison with other frameworks: interleaved workers, rows for failures, facts on
disk.
"""

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from llmbench.analysis.pairs import largest_difference
from llmbench.bench.peers import PARITY, PEERS

ROOT = Path(__file__).resolve().parents[1]
SMALL = ("--repeats", "1", "--rounds", "3", "--seq-len", "32")


def peers(*arguments):
    command = [sys.executable, "-m", "llmbench.bench.peers", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow  # in the quick set the notebooks bench/peers and peer_frameworks do it
def test_the_facts_hold_all_that_the_table_is_made_of(tmp_path):
    done = peers("--peers", "again,harness", *SMALL, "--out", str(tmp_path / "peers.json"))
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "peers.json").read_text())
    assert [p["name"] for p in facts["peers"]] == ["bare", "again", "harness"]
    assert (
        facts["schema"] == "llmbench.peers/1" and facts["spec"]["optimizer"]["weight_decay"] == 0.1
    )
    for peer in facts["peers"]:
        (row,) = peer["repeats"]
        assert peer["status"] == "ok" and all(
            len(row[c]) == 3 for c in ("time_s", "parent_s", "cpu_s", "page_faults")
        )
        assert all(
            0 < inside < outside
            for inside, outside in zip(row["time_s"], row["parent_s"], strict=True)
        )
    bare, again, harness = (p["repeats"] for p in facts["peers"])
    assert largest_difference(bare, again, "loss") == 0, (
        "two equal loops train the same, to the last bit"
    )
    assert largest_difference(bare, harness, "loss") <= PARITY
    assert len(done.stdout.splitlines()) == 4 and "llmbench" in done.stdout


def test_a_misspelt_peer_is_refused_in_one_line(tmp_path):
    done = peers("--peers", "acelerate", "--out", str(tmp_path / "never.json"))
    assert (
        done.returncode == 2 and "accelerate" in done.stderr and len(done.stderr.splitlines()) == 1
    )
    assert not (tmp_path / "never.json").exists()


def test_what_a_peer_needs_is_what_the_extra_installs():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["bench"]
    named = {requirement.split("==")[0] for requirement in extra}
    assert {package for peer in PEERS for package in peer.needs} <= named


def test_a_framework_trains_the_same_or_says_what_to_install(tmp_path):
    """Loss parity with the bare loop where it is installed; where it is not, a row with the line to
    type.
    """
    frameworks = {p.name: p for p in PEERS if p.needs}
    done = peers("--peers", ",".join(frameworks), *SMALL, "--out", str(tmp_path / "peers.json"))
    assert done.returncode == 0, done.stderr
    bare, *rows = json.loads((tmp_path / "peers.json").read_text())["peers"]
    assert [r["name"] for r in rows] == list(frameworks)
    for row in rows:
        if all(importlib.util.find_spec(p) for p in frameworks[row["name"]].needs):
            assert (
                row["status"] == "ok" and row["versions"] and len(row["repeats"][0]["loss"]) >= 3
            ), row["reason"]
            assert largest_difference(bare["repeats"], row["repeats"], "loss") <= PARITY, row[
                "name"
            ]
        else:
            assert row["status"] == "refused" and "llmbench[bench]" in row["reason"], row
