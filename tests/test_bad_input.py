"Wrong parameter files: one clear line, exit code 2, no traceback, nothing written."

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmbench.cli.main import main

RUN = """\
model: gpt-tiny
strategy: ddp
world_size: 2
seq_len: 128
batch: {micro: 4, global_tokens: 2048}
steps: 4
warmup_steps: 1
"""
STUDY = """\
study: wrong
base: {model: gpt-tiny, seq_len: 128, batch: {micro: 4, global_tokens: 2048}}
matrix: [{strategy: ddp, world_size: 2}]
"""


def changed(old, new, text=RUN):
    assert old in text
    return text.replace(old, new)


# name: (content of the file, what the line must contain)
RUN_FILES = {
    "world size as text": (
        changed("world_size: 2", 'world_size: "2"'),
        "write it without quotes: 2",
    ),
    "world size true": (changed("world_size: 2", "world_size: true"), "world_size = True"),
    "world size zero": (changed("world_size: 2", "world_size: 0"), "at least 1"),
    "world size negative": (changed("world_size: 2", "world_size: -2"), "at least 1"),
    "world size fraction": (changed("world_size: 2", "world_size: 1.5"), "whole number"),
    "world size missing": (changed("world_size: 2\n", ""), "world_size is missing"),
    "unknown key": (RUN + "stpes: 5\n", "did you mean steps"),
    "unknown key inside": (
        RUN + "optimizer: {learning_rate: 0.1}\n",
        "unknown key 'learning_rate'",
    ),
    "unknown strategy": (changed("ddp", "zreo2"), "did you mean zero2"),
    "unknown model": (changed("gpt-tiny", "gpt-tinny"), "did you mean gpt-tiny"),
    "unknown precision": (RUN + "precision: fp4\n", "allowed: bf16, fp16, fp32, fp8"),
    "float8 on a CPU": (RUN + "precision: fp8\n", "write precision: bf16"),
    "a beta above 1": (RUN + "optimizer: {betas: [0.9, 2.0]}\n", "must be less than 1"),
    "a Llama without a rotary base": (
        changed("gpt-tiny", "{name: llama-tiny, rope_theta: null}"),
        "write rope_theta: 10000.0",
    ),
    "weights that are not there": (RUN + "weights: nowhere\n", "has no shape.json"),
    "unknown hardware": (RUN + "hardware: tpu\n", "unknown hardware 'tpu'"),
    "unknown launcher": (RUN + "launcher: cloud\n", "unknown launcher 'cloud'"),
    "model that cannot exist": (
        changed("gpt-tiny", "{name: gpt-tiny, n_heads: 3}"),
        "not divisible by n_heads = 3",
    ),
    "strategy as a list": (changed("strategy: ddp", "strategy: [ddp]"), "write strategy: NAME"),
    "batch that does not divide": (changed("2048", "2000"), "not a multiple of"),
    "batch that contradicts itself": (
        changed("micro: 4", "micro: 4, accum: 1"),
        "leave one of the three out",
    ),
    "batch zero": (changed("micro: 4", "micro: 0"), "batch.micro = 0"),
    "batch as a number": (changed("{micro: 4, global_tokens: 2048}", "4"), "write batch:"),
    "sequence longer than the model": (
        changed("micro: 4", "micro: 1", changed("seq_len: 128", "seq_len: 1024")),
        "longer than the 512 positions",
    ),
    "rate as text": (RUN + "optimizer: {lr: 3e-4}\n", "write 3.0e-04"),
    "rate negative": (RUN + "optimizer: {lr: -0.1}\n", "optimizer.lr"),
    "rate not a number": (RUN + "optimizer: {lr: .nan}\n", "optimizer.lr"),
    "warm-up as long as the run": (
        changed("warmup_steps: 1", "warmup_steps: 4"),
        "leaves none of 4 steps",
    ),
    "single with two ranks": (changed("ddp", "single"), "one process is one rank"),
    "degrees that do not multiply": (
        changed("strategy: ddp", "strategy: {name: ddp, dp: 3}"),
        "dp 3",
    ),
    "degree that the strategy has not": (
        changed("strategy: ddp", "strategy: {name: ddp, tp: 2}"),
        "must be 1",
    ),
    "duplicate key": (RUN + "steps: 5\n", "key 'steps' is given twice"),
    "duplicate key inside": (
        changed("micro: 4", "micro: 4, micro: 2"),
        "key 'micro' is given twice",
    ),
    "tabs": (RUN + "optimizer:\n\tlr: 0.1\n", "a tab indents"),
    "no YAML": (RUN + "data: [1\n", "not YAML"),
    "empty": ("", "empty"),
    "comments only": ("# nothing\n", "empty"),
    "a list": ("- ddp\n- fsdp\n", "write key: value"),
    "a text": ("ddp\n", "write key: value"),
    "a number as key": (RUN + "7: 8\n", "is not text"),
    "data outside the project": (
        RUN + "data: {kind: text, paths: [../../../etc/passwd]}\n",
        "outside the project",
    ),
    "data that is not there": (
        RUN + "data: {kind: text, paths: [no/such/file.txt]}\n",
        "no such file",
    ),
    "paths of data that are not read": (RUN + "data: {kind: synthetic, paths: [README.md]}\n", ""),
    "study name that climbs": (RUN + "study: ../up\n", "study"),
    "a date": (changed("steps: 4", "steps: 2026-01-01"), "steps"),
    "data path with a zero byte": (RUN + 'data: {kind: text, paths: ["a\\0b"]}\n', "data"),
    "seed as a list": (RUN + "seed: [1, 2]\n", "seed"),
    "steps true": (changed("steps: 4", "steps: true"), "steps"),
    "binary": (b"\x80\x00\xff\xfe" * 64, "cannot be read as UTF-8"),
}
STUDY_FILES = {
    "empty matrix": (
        changed("[{strategy: ddp, world_size: 2}]", "[]", STUDY),
        "matrix must be a list",
    ),
    "matrix of texts": (
        changed("[{strategy: ddp, world_size: 2}]", "[ddp]", STUDY),
        "matrix must be a list",
    ),
    "matrix of nothing": (changed("strategy: ddp", "strategy: []", STUDY), "matrix"),
    "run twice": (changed("strategy: ddp", "strategy: [ddp, ddp]", STUDY), "is listed twice"),
    "one impossible run": (
        changed("world_size: 2", "world_size: [2, 3]", STUDY),
        '"world_size": 3',
    ),
    "no name": (changed("study: wrong\n", "", STUDY), "study is missing"),
    "repeats zero": (STUDY + "repeats: 0\n", "repeats"),
    "unknown key of a study": (STUDY + "repaets: 3\n", "did you mean repeats"),
    "base that is a list": (
        changed("base: {", "base: [{", changed("2048}}", "2048}}]", STUDY)),
        "base must be a mapping",
    ),
}
COMMANDS = [("run", name) for name in RUN_FILES] + [("sweep", name) for name in STUDY_FILES]


@pytest.fixture
def project(tmp_path, monkeypatch):
    "A project of its own, so that anything written would be seen."
    (tmp_path / "settings.ini").write_text("[study]\nresults = results\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, name):
    content, _ = (RUN_FILES | STUDY_FILES)[name]
    file = folder / "wrong.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def in_process(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return code, out.getvalue(), err.getvalue()


def refused(folder, code, out, err):
    "One line, exit 2, and the folder as it was."
    assert code == 2, err
    assert out == "" and err.count("\n") == 1 and err.startswith("llmbench: ")
    assert "Traceback" not in err
    assert sorted(p.name for p in folder.rglob("*")) == [
        "settings.ini",
        "wrong.yaml",
    ], "nothing is written"


@pytest.mark.parametrize(("verb", "name"), COMMANDS)
def test_wrong_file(project, verb, name):
    write(project, name)
    code, out, err = in_process(verb, "wrong.yaml")
    refused(project, code, out, err)
    assert (RUN_FILES | STUDY_FILES)[name][1] in err, err
    assert in_process("show", "wrong.yaml")[0] == 2, "show refuses what run refuses"


@pytest.mark.parametrize(
    ("verb", "name"), [COMMANDS[0], COMMANDS[-1], ("run", "binary"), ("run", "tabs")]
)
def test_wrong_file_in_a_process_of_its_own(project, verb, name):
    write(project, name)
    done = subprocess.run(
        [sys.executable, "-m", "llmbench.cli", verb, "wrong.yaml"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=project,
    )
    refused(project, done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("verb", ["run", "sweep", "show"])
def test_a_missing_file_is_reported_with_similar_names(project, verb):
    (project / "wrong.yaml").write_text(RUN)
    code, out, err = in_process(verb, "wrogn.yaml")
    refused(project, code, out, err)
    assert "there is: wrong.yaml" in err


@pytest.mark.parametrize(
    "override",
    ["stpes=3", "steps", "=3", "steps=[1", "batch.micro=0", "optimizer.lr=3e-4", "steps.x=1", ""],
)
def test_wrong_override(project, override):
    (project / "wrong.yaml").write_text(RUN)
    refused(project, *in_process("run", "wrong.yaml", "-o", override))


@pytest.mark.parametrize("verb", ["run", "standalone"])
def test_repeats_are_counted_from_one(project, verb):
    (project / "wrong.yaml").write_text(RUN)
    code, out, err = in_process(verb, "wrong.yaml", "--attempt", "-3")
    refused(project, code, out, err)
    assert "attempt -3" in err


@pytest.mark.parametrize("limit", ["nan", "inf", "-inf", "0"])
def test_a_limit_is_a_number_of_gib(project, limit):
    (project / "wrong.yaml").write_text(RUN)
    code, out, err = in_process("fit", "wrong.yaml", f"--limit-gib={limit}")
    refused(project, code, out, err)
    assert "finite number above 0" in err


def test_run_and_sweep_tell_each_other_apart(project):
    write(project, "repeats zero")
    code, out, err = in_process("run", "wrong.yaml")
    refused(project, code, out, err)
    assert "type llmbench sweep wrong.yaml" in err
    (project / "wrong.yaml").write_text(RUN)
    code, out, err = in_process("sweep", "wrong.yaml")
    refused(project, code, out, err)
    assert "type llmbench run wrong.yaml" in err


def test_a_folder_is_no_parameter_file(project):
    (project / "wrong.yaml").mkdir()
    refused(project, *in_process("run", "wrong.yaml"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(project):
    file = write(project, "empty")
    file.chmod(0)
    refused(project, *in_process("run", "wrong.yaml"))


def test_enough_of_them():
    assert len(COMMANDS) >= 20 and Path(__file__).name == "test_bad_input.py"
