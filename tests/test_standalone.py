"A run and its standalone file are the same training: same losses, with no parameter file in sight."

import os
import subprocess
import sys

import pytest
from notebooks import ROOT

from llmbench.core.numbers import test_near
from llmbench.core.records import read_run
from llmbench.launch.local import run_local
from llmbench.launch.sweep.standalone import standalone_python, standalone_shell
from llmbench.spec.resolve import load_run

PARAMS = """\
model: {name: gpt-tiny, n_layers: 2, d_model: 64, d_ff: 128}
strategy: ddp
world_size: 2
seq_len: 64
batch: {micro: 2, global_tokens: 512}
steps: 4
warmup_steps: 1
collective_steps: 0
optimizer: {lr: 1.0e-2}
data: {kind: text}
"""


NO_CONFIGURATION = """\
import llmbench.spec.params, llmbench.spec.presets, llmbench.spec.resolve


def asked(*given, **rest):
    raise AssertionError("the standalone file asked the configuration")


llmbench.spec.params.read_yaml = llmbench.spec.resolve.load_run = llmbench.spec.resolve.resolve_run = llmbench.spec.presets.preset = asked
"""


@pytest.mark.slow
def test_the_standalone_file_trains_the_same(tmp_path):
    params = tmp_path / "params.yaml"
    params.write_text(PARAMS)
    spec = load_run(params)
    run = run_local(spec, tmp_path / "run")
    files = {
        "ddp.py": (sys.executable, standalone_python(spec)),
        "ddp.sh": ("sh", standalone_shell(spec)),
    }
    params.unlink()
    for name, (program, text) in files.items():
        there = tmp_path / name.replace(".", "-")
        there.mkdir()
        (there / name).write_text(text)
        (there / "sitecustomize.py").write_text(NO_CONFIGURATION)
        env = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": f"{there}{os.pathsep}{ROOT}"}
        done = subprocess.run(
            [program, name, "out"], cwd=there, env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        alone = read_run(there / "out")
        assert (alone.status, alone.run_id, alone.spec.hash) == (
            run.status,
            run.run_id,
            run.spec.hash,
        )
        assert (
            alone.spec.data.fingerprint == run.spec.data.fingerprint and len(alone.steps.loss) == 4
        )
        test_near(alone.steps.loss, run.steps.loss, rel=1e-7)
        again = subprocess.run(
            [program, name, "out"], cwd=there, env=env, capture_output=True, text=True, timeout=60
        )
        assert again.returncode == 1 and "another folder" in again.stderr, (
            "a result is not written over"
        )
