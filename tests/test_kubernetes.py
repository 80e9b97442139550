"""Real kubectl against a test API server that runs each pod's command on a host of its own. No real
cluster is involved.
"""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from kubelet import Kubelet
from namespaces import POSSIBLE, workers
from waiting import until

from llmbench.cli.main import main
from llmbench.core.numbers import test_near
from llmbench.core.records import marked_result, read_run
from llmbench.launch.local import run_local
from llmbench.spec.resolve import resolve_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not POSSIBLE or not shutil.which("kubectl"), reason="needs root, iproute2 and kubectl"
    ),
]
KILLS = int(os.environ.get("LLMBENCH_KILLS", "1"))
KILLED_AT = [120 + 100 * i // KILLS for i in range(KILLS)]
BASE = {
    "model": "gpt-tiny",
    "hardware": "cpu",
    "strategy": "ddp",
    "world_size": 2,
    "seq_len": 64,
    "batch": {"micro": 2, "accum": 1},
    "steps": 6,
    "warmup_steps": 2,
    "timeouts": {"run_s": 240, "collective_s": 10},
}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with Kubelet(tmp_path) as made:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield made


def llmbench(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(words))
    return code, out.getvalue()


# a deadline far beyond its steps, so that what is planted ends it
ENDLESS = {"steps": 20_000, "timeouts": {"run_s": 2400, "collective_s": 10}}


def submit(tmp_path: Path, request: dict, *options: str):
    """Exit code and the run file of one run that `launch k8s` submits over two pods."""
    ask = tmp_path / "ask.yaml"
    ask.write_text(yaml.safe_dump(BASE | {"study": "kube"} | request))
    code, _ = llmbench(
        "launch",
        "k8s",
        str(ask),
        "--ranks-per-node",
        "1",
        "--submit",
        "--results",
        str(tmp_path / "results"),
        *options,
    )
    (file,) = (tmp_path / "results/kube").glob("*/run.json")
    return code, read_run(file)


def test_eight_runs_from_launch_to_site(cluster, tmp_path):
    matrix = [{"strategy": ["ddp", "fsdp", "zero2", "zero3"], "world_size": [2, 3]}]
    study, results = tmp_path / "study.yaml", str(tmp_path / "results")
    study.write_text(yaml.safe_dump({"study": "suite", "base": BASE, "matrix": matrix}))
    command = [
        "launch",
        "k8s",
        str(study),
        "--ranks-per-node",
        "1",
        "--submit",
        "--results",
        results,
    ]
    code, told = llmbench(*command)
    assert code == 0 and told.count("  ok") == 8, told
    assert cluster.listed("pods", None, {}) == cluster.listed("jobs", None, {}) == [], (
        "each run is removed when its result is here"
    )
    rows = json.loads(
        llmbench(
            "query",
            "select strategy, world_size, nodes, status from runs order by 1, 2",
            "--results",
            results,
            "--format",
            "json",
        )[1]
    )
    assert [(r["strategy"], r["nodes"]) for r in rows] == [
        (s, n) for s in ("ddp", "fsdp", "zero2", "zero3") for n in (2, 3)
    ]
    assert len(json.loads((tmp_path / "results/suite/study.json").read_text())["runs"]) == 8
    assert llmbench(*command) == (0, ""), "typed again, it has nothing to do"
    site = tmp_path / "site"
    assert llmbench("report", "--results", results, "--out", str(site))[0] == 0
    shown = (site / "study-suite.html").read_text()
    for run_id in json.loads((tmp_path / "results/suite/study.json").read_text())["runs"]:
        assert f'href="runs/{run_id}.html"' in shown and (site / f"runs/{run_id}.html").is_file(), (
            run_id
        )
    assert "8 runs, all ok" in shown and "Communication and the link" in shown, (
        "pods are nodes with one rank each"
    )


def test_without_its_service_a_run_says_so(cluster, tmp_path, monkeypatch):
    """The Service is there and selects nothing, the commonest mistake: names never come."""
    monkeypatch.setattr(cluster, "names", lambda pods, namespace: "127.0.0.1 localhost\n")
    code, run = submit(tmp_path, {}, "-s", "wait_s=5")
    assert (
        code == 1
        and run.status == "timeout"
        and "has no address after 5 s" in run.reason
        and "headless Service" in run.reason
    )


def in_the_middle(cluster, act) -> threading.Thread:
    """Do something once both pods have trained for some steps."""

    def trained() -> bool:
        files = list(cluster.folder.glob("*/results/rank-*.jsonl"))
        return len(files) == 2 and all(f.read_text().count('"kind":"step"') >= 5 for f in files)

    def go() -> None:
        until(trained, 200, every_s=0.2, message="the pods did not train five steps")
        act(sorted(n for k, _, n in cluster.things if k == "pods"))

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread


def test_a_pod_that_is_deleted_ends_the_run_with_its_steps(cluster, tmp_path):
    in_the_middle(cluster, lambda pods: cluster.remove("pods", "llmbench", pods[1]))
    began = time.monotonic()
    code, run = submit(tmp_path, ENDLESS)
    # the pod is told (SIGTERM); the other rank may notice first that its peer is gone
    assert code == 1 and run.status in ("interrupted", "crash", "timeout")
    assert time.monotonic() - began < 200
    assert run.reason, run


def trained_to(cluster, step: int) -> bool:
    """Whether rank 0 has come so far in its present start, on the volume of the claim."""
    (file,) = [*cluster.folder.glob("claims/runs/kube/*/rank-000.jsonl")] or [None]
    lines = file.read_text().rpartition('"kind":"start"')[2] if file else ""
    return f'"kind":"step","step":{step},' in lines


def pods_of(cluster) -> list[str]:
    """The running pods, by index."""
    living = [t for (k, _, n), t in cluster.things.items() if k == "pods" and n in cluster.running]
    return sorted(t["metadata"]["name"] for t in living if t["status"]["phase"] == "Running")


def test_a_killed_rank_and_an_evicted_pod_cost_no_run(cluster, tmp_path):
    """SIGKILL to a rank in pod 1, then SIGTERM with its grace period to pod 0: new pods continue on
    the claim's volume. The first counts as a failure, the second does not.
    """
    small = {"name": "llama-tiny", "n_layers": 2, "d_model": 64, "d_ff": 128, "vocab_size": 256}
    asked = {"model": small, "steps": 400, "checkpoint": {"every": 50}, "study": "kube"}
    done = []

    def disturb() -> None:
        for step in KILLED_AT:
            until(lambda step=step: trained_to(cluster, step), 400, every_s=0.05)
            address = cluster.things["pods", "llmbench", pods_of(cluster)[1]]["status"]["podIP"]
            (rank,) = workers(f"{cluster.mark}p{address.rpartition('.')[2]}")
            os.kill(rank, signal.SIGKILL)
            done.append("killed")
            until(lambda step=step: not trained_to(cluster, step), 100, every_s=0.05)
        until(lambda: trained_to(cluster, 220), 400, every_s=0.05)
        cluster.evict(pods_of(cluster)[0])
        done.append("evicted")

    threading.Thread(target=disturb, daemon=True).start()
    asked |= {"timeouts": {"run_s": 3000, "collective_s": 10}} if KILLS > 1 else {}
    code, run = submit(tmp_path, asked, "-s", f"restarts={KILLS}", "-s", "volume=pvc:runs")
    assert done == ["killed"] * KILLS + ["evicted"] and code == 0, run.reason
    assert run.status == "ok", run.reason
    assert run.steps.step == list(range(400)) and None not in run.steps.time_s
    assert run.goodput.starts == KILLS + 2 and run.goodput.interruptions == 1
    *failed, noticed = [e for e in run.events if e.kind == "resumed"]
    assert len(failed) == KILLS and all(e.lost_steps > 0 for e in failed)
    assert noticed.lost_steps == 0 and noticed.step > 220
    whole = run_local(resolve_run(BASE | asked | {"checkpoint": None}), tmp_path / "whole")
    test_near(run.steps.loss, whole.steps.loss, rel=1e-6)
    sys.stderr.write(
        f"\n{KILLS} killed: {run.goodput.lost_steps} steps done again; evicted: resumed at"
        f" {noticed.step}, none; down for {run.goodput.down_s:.0f} s\n"
    )


def test_a_log_that_is_cut_is_noticed_and_its_steps_are_kept(cluster, tmp_path):
    """The Job is Complete and its result is not here: nothing is removed, and the reason says what
    to type.
    """
    code, whole = submit(tmp_path, {})
    printed = marked_result(whole)
    cluster.cut_logs_at = printed.index('"ranks":[')
    ask = tmp_path / "ask.yaml"
    assert (
        llmbench(
            "launch",
            "k8s",
            str(ask),
            "--ranks-per-node",
            "1",
            "--submit",
            "--force",
            "--results",
            str(tmp_path / "again"),
        )[0]
        == 1
    )
    (file,) = (tmp_path / "again/kube").glob("*/run.json")
    run = read_run(file)
    assert (
        code == 0
        and run.status == "crash"
        and "cut" in run.reason
        and re.search(r"its first \d steps are kept", run.reason)
    ), run.reason
    assert (
        0 < len(run.steps.step) <= 6
        and run.steps.loss[0] == whole.steps.loss[0]
        and run.spec.strategy.name == "ddp"
    )
    assert (
        len(cluster.listed("jobs", None, {})) == 1
        and "kubectl --namespace llmbench logs" in run.reason
        and "delete" in run.reason
    )


def test_a_connection_that_breaks_costs_no_result(cluster, tmp_path):
    cluster.cut_logs_at, cluster.cut_following = 500, True
    code, run = submit(tmp_path, {})
    assert (
        code == 0
        and run.status == "ok"
        and len(run.steps.loss) == 6
        and cluster.listed("jobs", None, {}) == []
    )


def test_a_refused_job_is_a_row_and_leaves_nothing_behind(cluster, tmp_path):
    cluster.refused = {"jobs": "jobs.batch is forbidden: exceeded quota: one"}
    code, run = submit(tmp_path, {})
    assert (
        code == 1
        and run.status == "refused"
        and "exceeded quota" in run.reason
        and "type kubectl" in run.reason
    ), run.reason
    assert [
        kind for kind in ("services", "configmaps", "jobs") if cluster.listed(kind, None, {})
    ] == []


def test_a_deleted_job_ends_the_run(cluster, tmp_path):
    in_the_middle(
        cluster,
        lambda pods: [
            cluster.remove("jobs", "llmbench", n) for k, _, n in list(cluster.things) if k == "jobs"
        ],
    )
    began = time.monotonic()
    code, run = submit(tmp_path, ENDLESS)
    assert code == 1 and run.status != "ok" and time.monotonic() - began < 230
    assert "no such Job" in run.reason or any(
        "no such Job" in (e.text or "") for e in run.events
    ), run


def test_a_run_past_its_deadline_is_a_timeout_with_its_steps(cluster, tmp_path):
    # steps so small that the bound from their products allows the deadline, and their calls do not
    small = {"seq_len": 8, "batch": {"micro": 1, "accum": 1}, "steps": 20_000}
    code, run = submit(tmp_path, small | {"timeouts": {"run_s": 60, "collective_s": 10}})
    assert (
        code == 1
        and run.status == "timeout"
        and "timeouts.run_s" in run.reason
        and run.steps.time_s[0]
    ), (run.status, run.reason)


def test_a_job_that_kubectl_alone_applied_is_collected(cluster, tmp_path):
    """Rendered files and `kubectl apply`, on a machine that has no llmbench; later `--collect`."""
    ask, rendered = tmp_path / "ask.yaml", tmp_path / "rendered"
    ask.write_text(yaml.safe_dump(BASE | {"study": "kube"}))
    results = str(tmp_path / "results")
    one = ["launch", "k8s", str(ask), "--ranks-per-node", "1"]
    assert llmbench(*one, "--collect", "--results", results)[0] == 2, "nothing is there yet"
    assert not Path(results).exists() or not any(Path(results).rglob("launch-*"))
    assert llmbench(*one, "--render", str(rendered))[0] == 0
    (manifest,) = rendered.glob("kube*.yaml")
    subprocess.run(["kubectl", "apply", "-f", manifest], check=True, capture_output=True)
    assert llmbench(*one, "--collect", "--results", results)[0] == 0
    (file,) = (tmp_path / "results/kube").glob("*/run.json")
    run = read_run(file)
    assert run.status == "ok" and len(run.ranks) == 2 and run.spec.launcher == "k8s"
    assert cluster.listed("jobs", None, {}) == [], "collected, and removed"
