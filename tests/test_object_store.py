"""Checkpoints in an object store: a machine that is lost with its disk is replaced and the run goes
on. The store is a server that speaks S3 over loopback; several nodes share nothing but a store.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml
from hosts import POSSIBLE, Hosts
from test_checkpoint import ROOT, STEPS, spec_of
from test_faults import at_step
from waiting import until

from llmbench.core.numbers import test_near
from llmbench.core.records import rank_file, read_run
from llmbench.launch.local import run_local
from llmbench.spec.notice import give_notice, notice_file
from llmbench.spec.object_store import RunStore
from llmbench.spec.request import run_id

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (find_spec("s3fs") and find_spec("moto")), reason="no s3fs and moto: make .venv/.store"
    ),
]
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}
STORED = {"every": 3, "store": "s3://runs/llmbench"}


@pytest.fixture
def bucket(monkeypatch):
    """A bucket that is empty, and variables with which this process and its children reach it."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    s3 = boto3.resource("s3", endpoint_url=address, region_name="us-east-1")
    yield s3.create_bucket(Bucket="runs")
    server.stop()


def store_of(spec) -> RunStore:
    return RunStore(spec.checkpoint.store, spec.study, run_id(spec))


def node(spec, out, **more):
    """The entrypoint of a node, as a pod starts it, in a process group of its own."""
    file = out.with_name(f"{out.name}.yaml")
    file.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    words = ["-m", "llmbench.entrypoint", str(file), "--out", str(out), "--resume"]
    alone = {"NNODES": "1", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    log = out.with_name(f"{out.name}.log").open("ab")
    return subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=os.environ | alone | more,
        stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip


def lose(process, out) -> None:
    """The machine is gone: all of its processes at once, and its disk."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not alive(process.pid))
    shutil.rmtree(out)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def same_training(run, whole) -> None:
    assert run.status == "ok", run.reason
    assert run.steps.step == list(range(STEPS)) and run.goodput.starts == 2
    test_near(run.steps.loss, whole.steps.loss, rel=1e-6)
    assert run.spec.data.fingerprint == whole.spec.data.fingerprint


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2"])
def test_a_new_machine_continues_the_run_of_a_lost_one(strategy, bucket, tmp_path):
    spec = spec_of(strategy, checkpoint=STORED)
    whole = run_local(spec_of(strategy, checkpoint=None), tmp_path / "whole")
    store, first, second = store_of(spec), tmp_path / "first", tmp_path / "second"
    process = node(spec, first)
    until(lambda: (store.steps() or [0])[-1] >= 6, 120, process=process)
    lose(process, first)
    assert node(spec, second).wait(timeout=200) == 0, (tmp_path / "second.log").read_text()
    run = read_run(second)
    same_training(run, whole)
    (resumed,) = [e.step for e in run.events if e.kind == "resumed"]
    assert 6 <= resumed < STEPS and resumed % 3 == 0
    stored = [e for e in run.events if e.kind == "checkpoint_stored"]
    assert [e.step for e in stored][-1] == STEPS and all(e.bytes > 1e6 for e in stored)
    assert store.steps() == [STEPS - 3, STEPS], "the newest two are kept"
    assert run.goodput.save_s >= sum(e.time_s for e in stored) > 0
    there = {o.key.rpartition("/")[2] for o in bucket.objects.all()}
    assert {"run.json", "rank-001.jsonl", "stdout.log", "checkpoint.json"} <= there


def test_a_copy_that_was_cut_off_is_not_used(bucket, tmp_path):
    """Its files are all there but the one that is written last."""
    spec = spec_of("ddp", checkpoint=STORED | {"keep": 10})
    whole = run_local(spec_of("ddp", checkpoint=None), tmp_path / "whole")
    assert run_local(spec, tmp_path / "first").status == "ok"
    store = store_of(spec)
    for step in store.steps():
        if step > 9:
            store.fs.rm_file(f"{store.root}/checkpoints/step-{step:08d}/checkpoint.json")
    shutil.rmtree(tmp_path / "first")
    run = run_local(spec, tmp_path / "first", resume=tmp_path / "first")
    assert [e.step for e in run.events if e.kind == "resumed"] == [9]
    same_training(run, whole)


def test_a_run_that_begins_anew_keeps_no_later_step_of_the_one_before(bucket, tmp_path):
    """The same request twice, the second without --resume and ended early: its own steps count."""
    spec = spec_of("ddp", checkpoint=STORED)
    assert run_local(spec, tmp_path / "first").status == "ok"
    notice = at_step(4, lambda: give_notice(notice_file(tmp_path / "second")))
    cut = run_local(spec, tmp_path / "second", on_step=notice)
    assert cut.status == "interrupted" and not [e for e in cut.events if e.kind == "resumed"]
    assert store_of(spec).steps()[-1] == len(cut.steps.step) < STEPS


def test_a_store_that_fails_on_the_way_does_not_end_the_training(bucket, tmp_path):
    spec = spec_of("ddp", checkpoint=STORED)

    def gone():
        """Whether the bucket is deleted; a copy under way may fill it between two requests."""
        bucket.objects.all().delete()
        try:
            bucket.delete()
        except bucket.meta.client.exceptions.ClientError as e:
            assert e.response["Error"]["Code"] == "BucketNotEmpty"
            return False
        return True

    def emptied(row):
        if row["step"] == 4:
            until(gone, 60, every_s=0.05)

    run = run_local(spec, tmp_path / "out", on_step=emptied)
    assert run.status == "ok" and run.steps.step == list(range(STEPS))
    told = {e.kind for e in run.events if e.step == STEPS}
    assert told == {"checkpoint_saved", "checkpoint_not_stored"}
    lost = [e.text for e in run.events if e.kind == "checkpoint_not_stored"]
    assert all("cannot be written" in text and "runs/llmbench" in text for text in lost), lost


def test_a_bucket_that_is_not_there_is_refused_before_the_start(bucket, tmp_path):
    spec = spec_of("ddp", checkpoint=STORED | {"store": "s3://other/llmbench"})
    run = run_local(spec, tmp_path)
    assert run.status == "refused" and not run.steps.step
    assert "other/llmbench" in run.reason and "name of the bucket" in run.reason, run.reason
    assert not rank_file(tmp_path, 0).exists(), "no rank was started"


@pytest.mark.skipif(not POSSIBLE, reason="needs root, iproute2 (ip and tc), nsenter and unshare")
@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_nodes_that_share_only_a_store_go_on_after_one_is_replaced(strategy, tmp_path):
    """Each node has its part of every checkpoint; node 1 is lost with its disk, node 0 is not."""
    url = f"file://{tmp_path}/store"
    spec = spec_of(strategy, checkpoint=STORED | {"store": url})
    whole = run_local(spec_of(strategy, checkpoint=None), tmp_path / "whole")
    (tmp_path / "ask.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    with Hosts(2, tmp_path) as hosts:
        first = started(hosts, tmp_path)
        until(lambda: (store_of(spec).steps() or [0])[-1] >= 6, 120, process=first[0])
        for i, process in enumerate(first):
            hosts.kill(i)
            process.wait()
        shutil.rmtree(tmp_path / "node1")
        assert (tmp_path / "node0/checkpoints").exists(), "the disk of node 0 is still there"
        codes = [p.wait(timeout=200) for p in started(hosts, tmp_path)]
    assert codes == [0, 0], [(tmp_path / f"node{i}.log").read_text() for i in range(2)]
    run = read_run(tmp_path / "node0")
    same_training(run, whole)
    (resumed,) = [e.step for e in run.events if e.kind == "resumed"]
    assert resumed >= 6
    saved = {e.step: e.bytes for e in run.events if e.kind == "checkpoint_saved"}
    stored = {e.step: e.bytes for e in run.events if e.kind == "checkpoint_stored"}
    for step, sent in stored.items():
        # checkpoint.json of each node is not among the files that are sent
        assert 0 < saved[step] - sent < 10_000, "the parts of both nodes are counted"


def started(hosts: Hosts, folder) -> list:
    nodes = []
    for i in range(2):
        place = {"NNODES": "2", "NODE_RANK": str(i), "MASTER_ADDR": "host0", "MASTER_PORT": "29500"}
        words = ["-m", "llmbench.entrypoint", str(folder / "ask.yaml"), "--out"]
        words += [str(folder / f"node{i}"), "--wait", "60", "--resume"]
        log = folder / f"node{i}.log"
        nodes.append(hosts.start(i, [sys.executable, *words], env=place, log=log))
    return nodes
