"""docs/troubleshooting.md: every message that it quotes is one that the program can print."""

import ast
import re
from functools import cache

import pytest
from notebooks import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
# Messages of other programs, which no source of llmbench holds.
FOREIGN = (
    "polars and pyarrow are not installed",  # the names are put together, tested in 65_frames
    "ModuleNotFoundError",
    "'>' not supported between instances of 'str' and 'int'",
    "IPv6 address … not available",
    "invalid int value: '$(expr …'",
)


@cache
def printed() -> str:
    """The text of all string literals of the package and its Makefile, in one line."""
    found = []
    for path in sorted((ROOT / "llmbench").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "\0" for p in node.values)
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return " ".join(" ".join(found).split())


def quoted_messages() -> list[str]:
    """The messages in the first column of the page's tables: code of two words and more."""
    rows = [line.split(" | ")[0] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    codes = [code for row in rows for code in re.findall(r"`([^`]+)`", row)]
    return [code for code in codes if len(code.split()) > 2]


def is_printed(message: str) -> bool:
    """Whether the words between values (words with a digit, or of one letter) are in a literal."""
    value = re.compile(r"\S*(?:\d|…|°)\S*|\b[A-Z]\b|`|\0")
    runs = [" ".join(run.split()).strip(" ,;:'") for run in value.split(message)]
    runs = [run for run in runs if len(run.split()) > 1]
    return bool(runs) and all(run in printed() or _in_parts(run) for run in runs)


def _in_parts(run: str) -> bool:
    """Whether each half of a run with a name in its middle is in a literal, by three words."""
    words = run.split()
    if len(words) < 5:
        return False
    return any(" ".join(words[i : i + 3]) in printed() for i in range(len(words) - 2))


def test_every_quoted_message_can_be_printed():
    messages = quoted_messages()
    assert len(messages) >= 15
    lost = [m for m in messages if m not in FOREIGN and not is_printed(m)]
    assert not lost, f"quote what the program prints: {lost}"


@pytest.mark.parametrize(
    "message", ["the disk is on holiday today", "tp 8 cannot cut the 28 heads"]
)
def test_a_message_that_is_never_printed_is_found(message):
    assert not is_printed(message)
