"""Every format on an excerpt: recognised by its content, read, written, read back and asked for in
SQL.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from importer_excerpts import EXCERPTS, TEXT_FORMATS
from importer_results import RESULT_EXCERPTS

from llmbench.compare.audit.verb import audit_paths, format_audit
from llmbench.core.records import read_run
from llmbench.importers.base import Source
from llmbench.importers.formats import detect
from llmbench.importers.table import FORMATS, import_path
from llmbench.report.build import build_report


@pytest.fixture
def excerpt(tmp_path):
    def write(name: str, content: bytes):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_a_format_is_known_by_its_content(name, excerpt):
    assert detect(Source(excerpt("holiday.jpg", EXCERPTS[name])), FORMATS).name == name


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_what_is_read_is_a_valid_run_file(name, excerpt, tmp_path):
    done = import_path(excerpt("a.log", EXCERPTS[name]))
    (run,) = done.runs
    assert (
        len(run.steps.step) == 6
        and run.source.kind == "import"
        and run.source.format == name
        and len(run.source.sha256) == 64
    )
    assert done.tally.understood >= 6 and done.tally.broken == 0
    (path,) = done.write(tmp_path / "results")
    assert read_run(path) == run and "/" not in run.source.file
    assert (
        not any(d.name and "Intel" in d.name for d in run.env.devices)
        and run.env.cpu.name is None
        and run.env.hostnames == []
    )


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_the_same_file_twice_is_the_same_run(name, excerpt):
    first, second = (import_path(excerpt(f, EXCERPTS[name])).runs[0] for f in ("a.log", "b.log"))
    assert first.source.sha256 == second.source.sha256 and first.steps == second.steps


def test_line_ends_and_marks_change_nothing(excerpt):
    plain = EXCERPTS["megatron-lm"]
    known = import_path(excerpt("a", plain)).runs[0].steps
    for odd in (
        plain.replace(b"\n", b"\r\n"),
        plain.replace(b"\n", b"\r"),
        b"\xef\xbb\xbf" + plain,
        plain.decode().encode("utf-16"),
    ):
        assert import_path(excerpt("b", odd)).runs[0].steps == known


def test_runs_and_restarts(excerpt):
    head, _, rows = EXCERPTS["megatron-lm"].partition(
        b"-------------------- end of arguments ---------------------\n"
    )
    head += b"-------------------- end of arguments ---------------------\n"
    lines = rows.splitlines(keepends=True)
    other = [line.replace(b"8065.0", b"9065.0") for line in lines]
    two = import_path(excerpt("two", head + rows + head + b"".join(other)))
    assert [len(r.steps.step) for r in two.runs] == [6, 6] and two.runs[0].run_id != two.runs[
        1
    ].run_id
    again = [
        line.replace(b"elapsed time per iteration (ms): 8", b"elapsed time per iteration (ms): 7")
        for line in lines[3:]
    ]
    went_on = import_path(
        excerpt(
            "on", head + b"".join(lines[:5]) + b"Killing subprocess 17\n" + head + b"".join(again)
        )
    ).runs
    assert [r.steps.step for r in went_on] == [[1, 2, 3, 4, 5, 6]]
    (restart,) = [e for e in went_on[0].events if e.kind == "restart"]
    assert restart.step == 4 and restart.lost_steps == 2 and went_on[0].steps.time_s[3] < 7.5


def test_a_log_that_stops_says_how(excerpt):
    cut = import_path(excerpt("a", EXCERPTS["megatron-lm"])).runs[0]
    assert (
        cut.status == "cancelled"
        and "step 6 of 50" in cut.reason
        and any(e.kind == "cut" for e in cut.events)
    )
    killed = (
        EXCERPTS["megatron-lm"]
        + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert import_path(excerpt("b", killed)).runs[0].status == "oom"
    nan = EXCERPTS["megatron-lm"].replace(b"lm loss: 1.000000E+01", b"lm loss: nan")
    diverged = import_path(excerpt("c", nan)).runs[0]
    assert (
        diverged.status == "diverged"
        and diverged.steps.loss[5] is None
        and diverged.steps.time_s[5] is not None
    )


ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> Path:
    "A folder of results with the runs of every format, each in a study of its own."
    folder = tmp_path_factory.mktemp("all")
    for name, content in (EXCERPTS | RESULT_EXCERPTS).items():
        path = folder / "files" / f"{name}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        if name not in ("mlperf-system",):  # a description of a machine, read with its log
            study = re.sub(r"[^a-z0-9]+", "-", name)
            assert import_path(path, study=study, format=name).write(folder / "results")
    return folder / "results"


def test_every_format_reaches_the_audit(imported):
    audit = audit_paths([imported])
    files = len(list(imported.rglob("run.json")))
    assert files >= len(EXCERPTS) + len(RESULT_EXCERPTS) - 1
    assert len(audit.sources) == files and not audit.problems and not audit.lost
    assert "fault" in format_audit(audit, "table")


@pytest.mark.slow
def test_every_format_reaches_the_site(imported, tmp_path):
    outcome = build_report(imported, tmp_path / "site", engine="pandoc", source=ROOT / "reports")
    assert not outcome.problems
    pages = "".join(p.read_text() for p in (tmp_path / "site").rglob("*.html"))
    for name in EXCERPTS | RESULT_EXCERPTS:
        study = re.sub(r"[^a-z0-9]+", "-", name)
        assert name == "mlperf-system" or study in pages, f"{name} is on no page"


@pytest.mark.slow
def test_the_command(excerpt, tmp_path):
    def typed(*argv: str) -> subprocess.CompletedProcess:
        program = "import sys; from llmbench.cli.main import main; sys.exit(main(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", program, *argv], capture_output=True, text=True, cwd=tmp_path
        )

    path = excerpt("slurm-17.out", EXCERPTS["torchtitan"])
    done = typed("import", path.name, "--results", "results", "--study", "theirs")
    assert done.returncode == 0, done.stderr
    assert (
        "torchtitan" in done.stdout
        and len(list((tmp_path / "results/theirs").rglob("run.json"))) == 1
    )
    sql = "SELECT source_format, steps, world_size, framework FROM runs"
    (row,) = json.loads(typed("query", sql, "--results", "results", "--format", "json").stdout)
    assert row == {
        "source_format": "torchtitan",
        "steps": 6,
        "world_size": 8,
        "framework": "torchtitan",
    }
    for argv, said in (
        (("absent.log",), "no such file"),
        ((path.name, "--format", "megatron"), "megatron-lm"),
    ):
        wrong = typed("import", *argv, "--results", "results")
        assert wrong.returncode == 2 and said in wrong.stderr and wrong.stderr.count("\n") == 1
    unknown = typed(
        "import", excerpt("poem.txt", b"once upon a time\n").name, "--results", "results"
    )
    assert unknown.returncode == 2 and all(f.name in unknown.stderr for f in FORMATS)
