"""What a sweep takes for a finished run: a complete run file of this run, and nothing else that
lies in its place.
"""

import os
import signal

import pytest
from notebooks import ROOT
from pretended import STUDY, Pretended, swept

from llmbench.core.records import read_run
from llmbench.launch.sweep.sheet import SheetRequest
from llmbench.launch.sweep.sweep import run_requests
from llmbench.spec.request import run_id
from llmbench.spec.study import resolve_study


def damages(text: str, other: str) -> dict[str, bytes]:
    bombs = {
        "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "deep list": b"[" * 200_000 + b"]" * 200_000,
    }
    return bombs | {
        "empty": b"",
        "cut": text.encode()[:200],
        "mark of UTF-8": b"\xef\xbb\xbf" + text.encode(),
        "UTF-16": text.encode("utf-16"),
        "UTF-32": text.encode("utf-32"),
        "another run's": other.encode(),
        "NUL": b"\0" * 100,
        "a list": b"[]",
        "null": b"null",
        "not UTF-8": text.encode().replace(b"gpt-tiny", b"gpt-\xff\xfe"),
        "another schema": text.replace("llmbench.run/1", "llmbench.run/9").encode(),
        "a word": text.replace('"ok"', '"fine"').encode(),
    }


def test_a_damaged_run_file_is_no_finished_run(tmp_path, capsys):
    """Each is trained again and named; the valid run beside it is kept."""
    swept(tmp_path)
    first, second = (run_id(s) for s in resolve_study(STUDY).runs)
    path = tmp_path / "s" / first / "run.json"
    text, other = path.read_text(), (tmp_path / "s" / second / "run.json").read_text()
    assert swept(tmp_path)[1] == [], "sound ones are finished"
    for name, content in damages(text, other).items():
        path.write_bytes(content)
        outcome, asked = swept(tmp_path)
        assert asked == [first] and outcome.exit_code == 0, name
        assert read_run(path.parent).run_id == first, name
    path.write_bytes(other.encode())
    requests = [SheetRequest(s, 1, tmp_path) for s in resolve_study(STUDY).runs]
    run_requests(requests, run_one=Pretended())
    assert f"{first}: its run.json is damaged or of another run" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pipe", "device", "dangling", "circle", "folder", "socket"])
def test_what_is_no_file_is_no_finished_run(kind, tmp_path):
    """A pipe would be waited for without end: in a process of its own, with a deadline."""
    spec = resolve_study(STUDY).runs[1]
    folder = tmp_path / "s" / run_id(spec)
    folder.mkdir(parents=True)
    path = folder / "run.json"
    if kind == "socket":
        import socket

        os.chdir(folder)
        socket.socket(socket.AF_UNIX).bind("run.json")
    make = {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "dangling": lambda: path.symlink_to("nowhere"),
        "circle": lambda: path.symlink_to("run.json"),
        "folder": path.mkdir,
        "socket": lambda: None,
    }
    make[kind]()
    signal.alarm(20)
    try:
        outcome, asked = swept(tmp_path)
    finally:
        signal.alarm(0)
        os.chdir(ROOT)
    assert (
        run_id(spec) in asked
        and outcome.exit_code == 0
        and path.is_file()
        and not path.is_symlink()
    )
