"""What looks at a run: collectives, profilers, the cost of measuring. None of it may be in a timed
step.
"""

import gzip
import json
import os
import stat

import pytest

from llmbench.launch.local import run_local
from llmbench.launch.sweep.display import kernel_table
from llmbench.spec.resolve import resolve_run

REQUEST = {
    "study": "observed",
    "model": "gpt-tiny",
    "strategy": "ddp",
    "world_size": 2,
    "seq_len": 64,
    "batch": {"micro": 2, "global_tokens": 512},
    "steps": 6,
    "warmup_steps": 2,
    "data": {"kind": "text"},
}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """A run of two ranks, rank 1 under torch's profiler with everything that it keeps."""
    folder = tmp_path_factory.mktemp("profiled")
    profile = {"ranks": [1], "steps": 2, "memory": True, "stacks": True, "shapes": True}
    run = run_local(resolve_run(REQUEST | {"profile": profile}), folder)
    assert run.status == "ok", run.reason
    return folder, run


def test_only_timed_steps_are_in_the_run_file(profiled):
    _, run = profiled
    assert run.steps.step == list(range(6)) and run.window.steps == 2
    assert all(len(rank.time_s) == 6 for rank in run.ranks)


def test_the_window_counts_what_ddp_sends(profiled):
    _, run = profiled
    (all_reduce,) = run.collectives
    assert all_reduce.kind == "all_reduce"
    assert all_reduce.bytes == 2 * 4 * 4_339_200, "each gradient once a step, in float32"
    assert 0 < all_reduce.exposed_s <= all_reduce.time_s < run.window.time_s
    assert run.transfer.all_reduce_bus_gb_s > 0


def test_the_cost_of_measuring_is_measured(profiled):
    _, run = profiled
    assert run.measurement.clock == "monotonic" and 0 < run.measurement.clock_cost_s < 1e-4
    for rank in run.ranks:
        first = {
            0,
            run.spec.warmup_steps,
        }  # nothing before the first step, and a pause before the first measured one
        assert {k for k, s in enumerate(rank.bookkeeping_s) if s is None} <= first
        assert all(0 < s < 0.1 for s in rank.bookkeeping_s if s is not None)
        assert rank.param_norm_before != rank.param_norm_after, "it was trained"


def test_a_profile_block_leaves_trace_table_and_timeline_of_its_ranks(profiled):
    folder, _ = profiled
    assert not list(folder.glob("*-rank-000.json.gz")), "rank 0 was not asked"
    events = json.loads(gzip.decompress((folder / "trace-rank-001.json.gz").read_bytes()))[
        "traceEvents"
    ]
    assert any(e.get("name") == "aten::mm" for e in events)
    kernels = json.loads((folder / "kernels-rank-001.json").read_text())["kernels"]
    assert kernels == sorted(kernels, key=lambda k: -k["self_time_s"]) and "shapes" in kernels[0]
    assert "aten" in kernel_table(folder)
    assert (
        (folder / "memory-rank-001.csv")
        .read_text()
        .startswith("ms,device,allocated_bytes\n0.000,cpu,")
    )


def test_nsight_wraps_the_command_and_its_reports_follow(tmp_path, monkeypatch):
    """With a stand-in that notes its words and runs what it wraps; the real one needs a GPU to
    record anything.
    """
    tool, said = tmp_path / "bin/nsys", tmp_path / "said"
    tool.parent.mkdir()
    wrapped = (
        f'echo "$@" >> {said}\nif [ "$1" = profile ]; then while [ "${{1##*python*}}" ]; do shift;'
        ' done; exec "$@"; fi\n'
    )
    tool.write_text("#!/bin/sh\n" + wrapped)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    given = REQUEST | {
        "strategy": "single",
        "world_size": 1,
        "profile": {"tool": "nsys", "export": "sqlite"},
    }
    run = run_local(resolve_run(given), tmp_path / "out")
    assert run.status == "ok", run.reason
    words = [line.split()[0] for line in said.read_text().splitlines()]
    assert words == ["profile", "stats", "export"]
    assert "--capture-range=cudaProfilerApi" in said.read_text()


def test_a_profiler_that_is_missing_is_a_refusal(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = run_local(resolve_run(REQUEST | {"profile": {"tool": "nsys"}}), tmp_path / "out")
    assert run.status == "refused" and "profile.tool=torch" in run.reason
