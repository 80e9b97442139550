"""Wait for what other processes do, with a deadline."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def until(
    found: Callable[[], Found],
    within_s: float = 60,
    *,
    every_s: float = 0.05,
    process: subprocess.Popen | None = None,
    message: str | Callable[[], object] = "",
) -> Found:
    """What `found()` returns once it is true; asks every `every_s`.

    Fails with `message` after `within_s`, or as soon as `process` has ended.
    """
    deadline = time.monotonic() + within_s
    while not (result := found()):
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = (
                f"the process ended ({process.returncode})" if ended else f"{within_s:g} s passed"
            )
            raise AssertionError(f"{what}; {message() if callable(message) else message}")
        time.sleep(every_s)
    return result


def becomes_true(found: Callable[[], object], within_s: float = 60) -> bool:
    """Whether `found()` becomes true in time."""
    try:
        return bool(until(found, within_s))
    except AssertionError:
        return False
