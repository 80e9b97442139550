"""Files made to exhaust the machine that imports them: each ends in bounded memory and time, with
one line that says why.

Each file is read in a process of its own, forked from one that has loaded the importers, so that
its peak is its own.
"""

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import zipfile

import pytest

from llmbench.importers.eventfile import Point, event_bytes, masked_crc
from llmbench.importers.profiles.workbook import workbook_bytes

MOST_MIB, MOST_S = 300, 20
_READ = """
import os, sys, time
from llmbench.core.errors import LlmbenchError
from llmbench.importers.table import import_path

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

for path in sys.argv[2:]:
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    before, start = peak(), time.process_time()
    try:
        done = import_path(path, format="hf-trainer" if "history" in path else None)  # packed, it is not recognised
        done.write(sys.argv[1])
        said = f"{done.format}: {len(done.drafts)} runs, {done.tally.text()}"
    except LlmbenchError as e:
        said = f"refused: {e}"
    except BaseException as e:
        said = f"CRASH {e!r}"
    print(path, round(peak() - before), round(time.process_time() - start, 1), ascii(said), sep="\\t", flush=True)
    os._exit(0)
"""


def read_alone(tmp_path, *paths) -> dict[str, tuple[int, float, str]]:
    "MiB above the importers' own, seconds of processor and what was said, by file name."
    done = subprocess.run(
        [sys.executable, "-c", _READ, tmp_path / "out", *paths],
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(lines) == len(paths), (done.stdout, done.stderr)
    return {
        os.path.basename(path): (int(mib), float(seconds), said)
        for path, mib, seconds, said in lines
    }


def _workbook(**parts: bytes) -> bytes:
    "A workbook whose first sheet, shared strings or workbook part is the one given."
    names = {
        "sheet": "xl/worksheets/sheet1.xml",
        "strings": "xl/sharedStrings.xml",
        "book": "xl/workbook.xml",
    }
    sound = zipfile.ZipFile(
        io.BytesIO(
            workbook_bytes(
                {
                    "coll_analysis": [["rank"], [0]],
                    "gpu_timeline": [["type", "time ms"], ["busy", 5]],
                }
            )
        )
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name in dict.fromkeys([*sound.namelist(), *(names[k] for k in parts)]):
            file.writestr(
                name,
                next((v for k, v in parts.items() if names[k] == name), None) or sound.read(name),
            )
    return out.getvalue()


_SHEET = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
_STRINGS = b'<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'


def _many_sheets() -> bytes:
    rel = (
        'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
        ' xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
    )
    sheets = "".join(f'<sheet name="s{i}" r:id="r1"/>' for i in range(50_000))
    rows = _SHEET + b"<row><c><v>1</v></c></row>" * 20_000 + b"</sheetData></worksheet>"
    return _workbook(
        book=f"<workbook {rel}><sheets>{sheets}</sheets></workbook>".encode(), sheet=rows
    )


def _directory() -> bytes:
    "A zip of many empty parts: the directory alone fills the memory."
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("xl/worksheets/sheet1.xml", b"")
        for i in range(60_000):
            file.writestr(zipfile.ZipInfo(f"p{i}"), b"")
    return out.getvalue()


_LAUGHS = (
    b"<!DOCTYPE x [<!ENTITY a0 'ha'>"
    + b"".join(b"<!ENTITY a%d '%s'>" % (i, b"&a%d;" % (i - 1) * 10) for i in range(1, 9))
    + b"]>"
)


def _record(payload: bytes) -> bytes:
    head = struct.pack("<Q", len(payload))
    return (
        head
        + struct.pack("<I", masked_crc(head))
        + payload
        + struct.pack("<I", masked_crc(payload))
    )


def _many_tags() -> bytes:
    return event_bytes(
        [Point("lm loss", 1, 1.7e9, 1.0), *(Point(f"{i:x}", 1, 1.7e9, 1.0) for i in range(600_000))]
    )


def _many_lengths() -> bytes:
    return event_bytes(
        [
            Point("lm loss", 1, 1.7e9, 1.0),
            *(Point("t" * (1 + i % 4000), 1, 1.7e9, 1.0) for i in range(16_000)),
        ]
    )


def _packed_again(head: bytes, body: bytes, times: int) -> bytes:
    "Gzip whose text goes on for `times` times its body."
    return gzip.compress(head) + gzip.compress(body, 9) * times


_ENTRY = b'{"epoch": 0.6, "grad_norm": 47.75, "learning_rate": 0.00016, "loss": 8.3, "step": 1},\n'
_KERNEL = (
    b'{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1020.5, "dur": 300.0, "args": {"device":'
    b" 3}},\n"
)
_COLUMNS = b"training.runtime(s),training.throughput(samples/s)"
_ROW = b"iter 7: loss 9.0000, time 80.00ms, mfu 1.00%\n"
_MLLOG = b':::MLLOG {"key": "global_batch_size", "value": 8, "metadata": {}}\n'

BOMBS = {
    "zeros.xlsx": lambda: _workbook(sheet=_SHEET + b" " * 250_000_000),
    "rows.xlsx": lambda: _workbook(sheet=_SHEET + b"<row><c><v>1</v></c></row>" * 4_000_000),
    "cells.xlsx": lambda: _workbook(sheet=_SHEET + b"<row>" + b"<c/>" * 10_000_000),
    "strings.xlsx": lambda: _workbook(strings=_STRINGS + b"<si><t>x</t></si>" * 5_000_000),
    "other.xlsx": lambda: _workbook(sheet=_SHEET + b"<b/>" * 20_000_000),
    "deep.xlsx": lambda: _workbook(sheet=_SHEET + b"<a>" * 20_000_000),
    "attribute.xlsx": lambda: _workbook(sheet=_SHEET + b'<row r="' + b"9" * 200_000_000),
    "laughs.xlsx": lambda: _workbook(
        sheet=b"<!--"
        + b" " * 5000
        + b"-->"
        + _LAUGHS
        + _SHEET
        + b"<row><c><v>&a8;</v></c></row></sheetData></worksheet>"
    ),
    "corner.xlsx": lambda: _workbook(
        sheet=_SHEET
        + b'<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>2</v></c>'
        b"</row></sheetData></worksheet>"
    ),
    "sheets.xlsx": _many_sheets,
    "directory.xlsx": _directory,
    "tags.tfevents": _many_tags,
    "lengths.tfevents": _many_lengths,
    "deep_trace.json": (
        lambda: (
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": 1}], "distributedInfo": ['
            + b"[]," * 20_000_000
        )
    ),
    "wide_event.json": (
        lambda: (
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": 1, "args": {'
            + b'"":{},' * 10_000_000
        )
    ),
    "frames.json": (
        lambda: (
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": 1}], "stackFrames": ['
            + b"1," * 30_000_000
        )
    ),
    "history.json.gz": lambda: _packed_again(
        b'{"global_step": 5, "log_history": [\n', _ENTRY * 700_000, 40
    ),
    "kernels.json.gz": lambda: _packed_again(
        b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": 1},\n', _KERNEL * 600_000, 40
    ),
    "metrics.json": (
        lambda: (
            b'{"lm loss": {"start_step": 1, "step_interval": 1, "values": {'
            + b'"1": 2, ' * 10_000_000
        )
    ),
    "keys.json": (
        lambda: (
            b'{"log_history": [], "max_steps": 5, '
            + b",".join(b'"k%d": [%s]' % (i, b"[]," * 100_000 + b"[]") for i in range(200))
            + b"}"
        )
    ),
    "lists.json": (
        lambda: (
            b'{"performance_metrics": {}, "step_times": [1], '
            + b",".join(b'"x%d": [%s]' % (i, b"[]," * 100_000 + b"[]") for i in range(200))
            + b"}"
        )
    ),
    "line.jsonl": (
        lambda: (
            b'{"step": 1, "loss": 2, "num_label_tokens": 3}\n{"step": 2, "x": ['
            + b"[]," * 20_000_000
        )
    ),
    "line.csv": lambda: _COLUMNS + b"\n" + b"a," * 40_000_000,
    "quotes.csv": lambda: _COLUMNS + b"\n" + b'"\n",' * 15_000_000,
    "columns.csv": lambda: _COLUMNS + b",a" * 500_000 + b"\n" + b"a\n" * 1_000_000,
    "report.json": lambda: b'{"optimum_benchmark": "x", "latency": [' + b"[]," * 20_000_000,
    "runs.csv": lambda: b"wallClockRuntime,status\n" + b"1,ok\n" * 3_000_000,
    "told.log": (
        lambda: (
            _MLLOG
            + b"".join(b':::MLLOG {"key": "lora_rank", "value": %d}\n' % i for i in range(500_000))
        )
    ),
    "steps.log": (
        lambda: (
            _MLLOG
            + b"".join(
                b':::MLLOG {"key": "tracked_stats", "value": {"train_loss": 1}, "metadata": {"step":'
                b" %d}}\n" % i
                for i in range(500_000)
            )
        )
    ),
    "long.log": (
        lambda: (
            _MLLOG
            + b"".join(
                b':::MLLOG {"key": "x%d", "value": "%s"}\n' % (i, b"v" * 1_000_000)
                for i in range(100)
            )
        )
    ),
    "restarts.jsonl": lambda: b"".join(
        b'{"step": %d, "loss": 2.5, "num_label_tokens": %d}\n' % (i, k)
        for i in range(60_000)
        for k in (1, 2)
    ),
    "result.log": lambda: b'{\n"mean_step_time_sec": 1,\n' + (b"x" * 200_000 + b"\n") * 500,
    "cards.data": (
        lambda: (
            b'{"event": "config", "data": {}}\n'
            + b"".join(
                b'{"event": "data", "data": {"gpudata": {"%d": {"memory": [1, 2]}}}}\n' % i
                for i in range(600_000)
            )
        )
    ),
    "field.nsys": (
        lambda: (
            (
                b"Executing 'cuda_gpu_kern_sum' stats report\nTime (%),Total Time"
                b' (ns),Instances,Name\n1,2,3,"'
            )
            + b"x" * 300_000
            + b'"\n'
        )
    ),
    "lines.log.gz": lambda: _packed_again(_ROW, _ROW * 200_000, 60),
    "nested.gz": lambda: gzip.compress(gzip.compress(b"x" * 10_000_000)),
}
_QUICK = (
    "zeros.xlsx",
    "strings.xlsx",
    "deep.xlsx",
    "attribute.xlsx",
    "laughs.xlsx",
    "corner.xlsx",
    "directory.xlsx",
    "deep_trace.json",
    "wide_event.json",
    "line.csv",
    "quotes.csv",
    "report.json",
    "line.jsonl",
    "result.log",
    "field.nsys",
    "lines.log.gz",
    "nested.gz",
)


def _check(tmp_path, names) -> None:
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_bytes(BOMBS[path.name]())
    found = read_alone(tmp_path, *paths)
    for name, (mib, seconds, said) in found.items():
        print(
            f"{name}: {(tmp_path / name).stat().st_size / 1e6:.1f} MB, {mib} MiB, {seconds} s,"
            f" {said[:200]}"
        )
    for name, (mib, seconds, said) in found.items():
        most_s = MOST_S * max(1, (tmp_path / name).stat().st_size / 1e8)
        assert mib <= MOST_MIB and seconds <= most_s and "CRASH" not in said and len(said) < 1500, (
            name,
            mib,
            seconds,
            said[:300],
        )


@pytest.mark.parametrize("names", [_QUICK[i::3] for i in range(3)], ids=" ".join)
def test_bombs(names, tmp_path):
    _check(tmp_path, names)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in BOMBS if n not in _QUICK])
def test_more_bombs(name, tmp_path):
    _check(tmp_path, [name])


def test_a_false_length_is_not_read(tmp_path):
    "A record that claims a GiB, in a file with a hole of that size: the hole is passed over."
    path = tmp_path / "events.out.tfevents.1"
    head = struct.pack("<Q", 2**30)
    with path.open("wb") as file:
        file.write(
            event_bytes([Point("lm loss", 1, 1.7e9, 2.0)])
            + head
            + struct.pack("<I", masked_crc(head))
        )
        file.truncate(file.tell() + 2**30 - 100)
    ((mib, seconds, said),) = read_alone(tmp_path, path).values()
    assert mib < 50 and seconds < 5 and "cut inside of a record" in said, said


def test_a_trace_that_never_ends_says_so(tmp_path):
    "Text a thousand times the size of its file is no trace; what came before is kept."
    path = tmp_path / "a.json.gz"
    path.write_bytes(
        _packed_again(
            b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": 1},\n', b" " * 2**26, 30
        )
    )
    ((mib, seconds, said),) = read_alone(tmp_path, path).values()
    assert mib < 100 and seconds < MOST_S and "unpacks to more than" in said, said


def test_a_packed_log_that_never_ends_is_refused(tmp_path):
    "As a trace: text a thousand times the size of its file is no log."
    path = tmp_path / "a.log.gz"
    path.write_bytes(_packed_again(_ROW, _ROW * 200_000, 60))
    ((mib, seconds, said),) = read_alone(tmp_path, path).values()
    assert mib < 200 and seconds < MOST_S, (mib, seconds)
    assert "refused: a.log.gz: cannot be read: the file unpacks to more than" in said.strip("'"), (
        said
    )


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    (tmp_path / "folder").mkdir()
    sound = tmp_path / "a.json"
    sound.write_text(
        json.dumps({"global_step": 1, "log_history": [{"loss": 1.0, "step": 1}], "max_steps": 1})
    )
    (tmp_path / "link").symlink_to(sound)
    names = ("fifo", "zero", "circle", "nowhere", "folder", "link")
    found = read_alone(tmp_path, *(tmp_path / n for n in names))
    assert "hf-trainer: 1 runs" in found["link"][2], found["link"]
    assert all("refused" in found[n][2] and n in found[n][2] for n in names[:-1]), found


def test_a_fifo_beside_a_log_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "system_x.json")
    log = tmp_path / "x_result_0.txt"
    log.write_bytes(
        _MLLOG
        + b':::MLLOG {"key": "tracked_stats", "value": {"train_loss": 1.5}, "metadata": {"step":'
        b" 1}}\n"
    )
    ((_, _, said),) = read_alone(tmp_path, log).values()
    assert "mlperf-mllog: 1 runs" in said
