"""Real Slurm daemons of this machine's distribution, on hosts made of namespaces: a study as an
array.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hosts import Hosts
from namespaces import POSSIBLE, workers
from waiting import until

from llmbench.core.numbers import test_near
from llmbench.core.records import read_run
from llmbench.launch.cluster.slurm import read_slurm
from llmbench.launch.local import run_local
from llmbench.spec.resolve import resolve_run

DAEMONS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not POSSIBLE or not all(shutil.which(d) for d in DAEMONS),
        reason="needs root, iproute2 and Debian's slurm-wlm, munge",
    ),
]

CONF = """\
ClusterName=llmbench
SlurmctldHost=host0(10.77.0.10)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=20
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
MinJobAge=600
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName=host[0-2] CPUs=2 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=9 PreemptMode=OFF
"""
KILLS = int(os.environ.get("LLMBENCH_KILLS", "1"))
KILLED_AT = [120 + 100 * i // KILLS for i in range(KILLS)]
BASE = {
    "model": "gpt-tiny",
    "hardware": "cpu",
    "strategy": "ddp",
    "world_size": 2,
    "seq_len": 64,
    "batch": {"micro": 2, "accum": 1},
    "steps": 3,
    "warmup_steps": 1,
    "timeouts": {"run_s": 2400, "collective_s": 10},
}
WILD = {"lr": 1.0e18, "clip_norm": None}


class Cluster:
    """slurmctld on host0, slurmd on all three, with a munged of its own: nothing of the machine's
    is touched.
    """

    def __init__(self, hosts: Hosts, folder: Path):
        self.hosts, self.folder = hosts, folder
        self.env = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": os.environ.get("PYTHONPATH", os.getcwd()),
        }
        munge = folder / "munge"
        munge.mkdir(mode=0o755)
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        files = {
            "socket": "socket",
            "key-file": "key",
            "pid-file": "pid",
            "seed-file": "seed",
            "log-file": "log",
        }
        words = [f"--{option}={munge / name}" for option, name in files.items()]
        self.munged = subprocess.Popen(
            ["munged", "--foreground", "--force", *words], stderr=subprocess.DEVNULL
        )
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(CONF.format(folder=folder))
        hosts.start(0, ["slurmctld", "-D"], env=self.env, log=folder / "ctl.out")
        for i in range(3):
            hosts.start(
                i, ["slurmd", "-D", "-N", f"host{i}"], env=self.env, log=folder / f"d{i}.out"
            )
        self.until(lambda: self.say("sinfo", "-h", "-o", "%T").split() == ["idle"], 60)

    def say(self, *words: str) -> str:
        log = self.folder / "said"
        self.hosts.start(0, list(words), env=self.env, log=log).wait(timeout=60)
        return log.read_text()

    def until(self, found, within_s: float) -> None:
        until(found, within_s, every_s=0.5, message=self.state)

    def state(self) -> str:
        return self.say("scontrol", "show", "nodes") + (self.folder / "ctl.out").read_text()

    def close(self) -> None:
        self.munged.terminate()
        self.munged.wait()


@pytest.fixture
def cluster(tmp_path):
    with Hosts(3, tmp_path) as hosts:
        made = Cluster(hosts, tmp_path)
        try:
            yield made
        finally:
            made.close()


def test_a_study_is_an_array_whose_failures_are_rows(cluster, tmp_path):
    """Task 0 is ok, 1 diverges, 2 is cancelled by scancel, 3 loses a node; each leaves its status
    and its steps.
    """
    matrix = [
        {"name": "fine"},
        {"name": "wild", "optimizer": WILD},
        {"name": "endless", "steps": 20_000},
        {"name": "lost", "steps": 19_999},
    ]
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({"study": "slurm", "base": BASE, "matrix": matrix}))
    options = [
        "--nodes",
        "2",
        "--results",
        str(tmp_path / "results"),
        "-s",
        f"python={sys.executable}",
    ]
    command = [
        sys.executable,
        "-m",
        "llmbench.cli",
        "launch",
        "slurm",
        str(study),
        "--submit",
        *options,
    ]
    launched = cluster.hosts.start(0, command, env=cluster.env, log=tmp_path / "launch.log")
    shared = tmp_path / "results/slurm/.partial"

    def task(i: int):
        handles = list(shared.glob("*/handle.txt"))
        return (
            read_slurm(
                cluster.say("scontrol", "show", "job", "-o", handles[0].read_text().strip()), 4
            )[i]
            if handles
            else None
        )

    def steps(name: str) -> int:
        return sum(
            f.read_text().count('"kind":"step"')
            for f in shared.glob(f"*/runs/slurm.{name}.*/rank-*.jsonl")
        )

    cluster.until(lambda: steps("endless") > 8, 180)
    handle = next(shared.glob("*/handle.txt")).read_text().strip()
    assert task(0).over and task(2).running
    cluster.say("scancel", f"{handle}_2")
    cluster.until(lambda: steps("lost") > 8, 120)
    nodes = cluster.say("squeue", "-h", "-o", "%N")
    assert "host[0-1]" in nodes, nodes
    before = time.monotonic()
    cluster.hosts.kill(1)
    launched.wait(timeout=120)
    sys.stderr.write(
        f"\na lost node: the launcher had its results after {time.monotonic() - before:.1f} s\n"
    )
    text = (tmp_path / "launch.log").read_text()
    runs = {
        p.parent.name.split(".")[1]: read_run(p)
        for p in (tmp_path / "results/slurm").glob("slurm.*/run.json")
    }
    assert {name: run.status.value for name, run in runs.items()} | {"lost": ""} == {
        "fine": "ok", "wild": "diverged", "endless": "cancelled", "lost": ""}, text  # fmt: skip
    assert runs["lost"].status in ("crash", "timeout") and len(runs["lost"].steps.step) >= 4, runs[
        "lost"
    ].reason
    assert (
        runs["fine"].env.hostnames == ["host0", "host1"] and runs["fine"].spec.launcher == "slurm"
    )
    assert len(runs["endless"].steps.step) >= 4 and runs["wild"].steps.loss[0]
    assert launched.returncode == 1


def test_a_killed_rank_and_a_preemption_queue_the_job_again(cluster, tmp_path):
    """SIGKILL to a rank counts as a failure; a job in a partition of higher priority preempts the
    run, whose ranks write a checkpoint in the grace time. The job is queued again both times.
    """
    small = {"name": "llama-tiny", "n_layers": 2, "d_model": 64, "d_ff": 128, "vocab_size": 256}
    asked = BASE | {"model": small, "steps": 400, "checkpoint": {"every": 50}, "study": "slurm"}
    asked |= {"timeouts": {"run_s": 3000, "collective_s": 10}} if KILLS > 1 else {}
    ask, results = tmp_path / "ask.yaml", tmp_path / "results"
    ask.write_text(yaml.safe_dump(asked))
    words = ["launch", "slurm", str(ask), "--submit", "--nodes", "2", "--results", str(results)]
    options = ["-s", f"restarts={KILLS}", "-s", f"python={sys.executable}"]
    command = [sys.executable, "-m", "llmbench.cli", *words, *options]
    launched = cluster.hosts.start(0, command, env=cluster.env, log=tmp_path / "launch.log")

    def trained_to(step: int) -> bool:
        """Whether rank 0 has come so far in its present start."""
        (file,) = [*results.glob("slurm/.partial/*/runs/*/rank-000.jsonl")] or [None]
        lines = file.read_text().rpartition('"kind":"start"')[2] if file else ""
        return f'"kind":"step","step":{step},' in lines

    for step in KILLED_AT:
        until(lambda step=step: trained_to(step), 300, message=cluster.state)
        (rank,) = workers(cluster.hosts.namespace(1))
        os.kill(rank, signal.SIGKILL)
        until(lambda step=step: not trained_to(step), 200, message=cluster.state)
    until(lambda: trained_to(220), 300, message=cluster.state)
    urgent = ["sbatch", "-p", "urgent", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "true"]
    cluster.say(*urgent)
    assert launched.wait(timeout=400) == 0, (tmp_path / "launch.log").read_text()
    (file,) = results.glob("slurm/*/run.json")
    run = read_run(file)
    assert run.status == "ok" and run.steps.step == list(range(400))
    assert run.goodput.starts == KILLS + 2 and run.goodput.interruptions == 1
    *failed, noticed = [e for e in run.events if e.kind == "resumed"]
    assert len(failed) == KILLS and all(e.lost_steps > 0 for e in failed)
    assert noticed.lost_steps == 0 and noticed.step > 220
    whole = run_local(resolve_run(asked | {"checkpoint": None}), tmp_path / "whole")
    test_near(run.steps.loss, whole.steps.loss, rel=1e-6)
    sys.stderr.write(
        f"\n{KILLS} killed: {run.goodput.lost_steps} steps done again; preempted: resumed at"
        f" {noticed.step}, none; down for {run.goodput.down_s:.0f} s\n"
    )


def test_what_goes_wrong_before_the_ranks_start_is_reported(cluster, tmp_path):
    """A partition that is not there is refused by sbatch; a Python without llmbench writes
    its error to the log that sbatch names.
    """
    ask = tmp_path / "ask.yaml"
    ask.write_text(yaml.safe_dump(BASE | {"study": "slurm"}))
    found = []
    for option in ("partition=nowhere", "python=/usr/bin/python3 -E"):
        results = tmp_path / option.partition("=")[0]
        command = [
            sys.executable,
            "-m",
            "llmbench.cli",
            "launch",
            "slurm",
            str(ask),
            "--submit",
            "--nodes",
            "2",
            "--results",
            str(results),
            "-s",
            option,
        ]
        assert (
            cluster.hosts.start(0, command, env=cluster.env, log=tmp_path / "launch.log").wait(
                timeout=180
            )
            == 1
        ), (tmp_path / "launch.log").read_text()
        (file,) = results.glob("slurm/*/run.json")
        found.append(read_run(file))
    refused, failed = found
    assert (
        refused.status == "refused"
        and "invalid partition" in refused.reason.lower()
        and "-s partition=NAME" in refused.reason
    ), refused.reason
    assert failed.status == "crash" and "No module named" in failed.reason, failed.reason


def test_srun_may_start_every_rank(cluster, tmp_path):
    """One task a rank, four ranks on two hosts, without an agent."""
    ask = tmp_path / "ask.yaml"
    asked = BASE | {"study": "slurm", "world_size": 4, "strategy": "fsdp"}
    # without an agent the ranks wait for each other while they import torch, on shared cores
    asked |= {"timeouts": {"run_s": 2400, "collective_s": 60}}
    ask.write_text(yaml.safe_dump(asked))
    options = [
        "--nodes",
        "2",
        "--results",
        str(tmp_path / "results"),
        "-s",
        f"python={sys.executable}",
        "-s",
        "per_rank=true",
    ]
    command = [
        sys.executable,
        "-m",
        "llmbench.cli",
        "launch",
        "slurm",
        str(ask),
        "--submit",
        *options,
    ]
    assert (
        cluster.hosts.start(0, command, env=cluster.env, log=tmp_path / "launch.log").wait(
            timeout=180
        )
        == 0
    ), (tmp_path / "launch.log").read_text()
    (file,) = (tmp_path / "results/slurm").glob("*/run.json")
    run = read_run(file)
    assert run.status == "ok" and [r.host for r in run.ranks] == [
        "host0",
        "host0",
        "host1",
        "host1",
    ]
