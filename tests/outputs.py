"""Compare the stored outputs of notebooks with those of the code as it is now.

A program: it runs each notebook whose path contains one of the given words (all of them without
any), one at a time, and compares its outputs. In the rooms that compute from files, numbers are
compared, too; a cell with `#| varies`, and the rooms that measure, are compared by their words
alone, without numbers, times, paths and facts of the machine. An output where none is stored counts
whatever it is. With --write, the outputs that are missing or differ are stored. Cells with `#|
slow` are left out unless --slow is given.

  python tests/outputs.py 30_train 40_launch/45 --write
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import multiprocessing
import os
import re
import sys
import tempfile
from pathlib import Path

from notebooks import NOT_RUN, ROOT

DEADLINE_S = 600
OWN = ("llmbench", "importer ", "rank ")  # how our own lines on stderr begin
MASKED = re.compile(
    r"""\x1b\[[0-9;]*m              # colours
    | <[^<>]*>                      # tags, and objects at an address
    | (?:https?:/|\.{0,2})?/[^\s'",)\]]+    # addresses and paths
    | \b\w*\d[\w.+-]*(?:\s?\b(?:[kKMGTP]i?)?B\b)?  # numbers, versions, hashes, names with digits
    """,
    re.VERBOSE,
)
COMPUTED = ("10_core", "15_spec", "20_plan", "50_importers", "60_analysis", "65_store")
COMPUTED += ("70_compare", "80_report", "90_cli")  # the same files give the same numbers everywhere
PASSING = re.compile(
    r"""0x[0-9a-f]+ | /tmp/[^\s'")\]]+ | <ipython-input-[^>]*> | \b\d+\.py\b
    | (?<=layouts\ in\ )[\d.]+ | (?<=here\ differ\ ).*  # of verify: what is installed
    | (?<=altair-viz-)[0-9a-f]+ | (?<=param_)[0-9a-f]+ | (?<=view_)[0-9a-f]+""",
    re.VERBOSE,
)
NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
UNITS = set("ns µs ms min seconds minutes hours GiB MiB KiB kB MB GB TB nan inf None null".split())


def text_of(output: dict) -> str:
    """All text of an output; of a picture the text in it."""
    if output["output_type"] == "error":
        return " ".join([output["ename"], output["evalue"]])
    parts = (
        [output["data"][k] for k in sorted(output["data"])]
        if "data" in output
        else [output["text"]]
    )
    return "\n".join("".join(part) for part in parts if isinstance(part, (str, list)))


def kept(outputs: list[dict]) -> list[dict]:
    """Outputs without the lines that other programs wrote to stderr."""
    found = []
    for output in outputs:
        if output.get("name") == "stderr":
            said = "".join(output["text"]).splitlines(keepends=True)
            output = output | {"text": [line for line in said if line.startswith(OWN)]}
        found += [output] if output.get("text", True) else []
    return found


def words(outputs: list[dict]) -> set[str]:
    """The words of outputs that should be the same on every machine."""
    text = MASKED.sub(" ", "\n".join(map(text_of, outputs)))
    return {w for w in re.findall(r"[^\W\d]{2,}", text)} - UNITS


def first_difference(before: list[dict], now: list[dict]) -> str | None:
    """The first line that differs, with its numbers; the last digits of a float may differ."""
    old, new = ("\n".join(map(text_of, o)).splitlines() for o in (before, now))
    old, new = ([PASSING.sub("…", line) for line in lines] for lines in (old, new))
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "replace" and b - a == d - c:
            pairs = [(x, y) for x, y in zip(old[a:b], new[c:d]) if not same_line(x, y)]
        elif tag == "equal":
            continue
        else:
            pairs = [("".join(old[a:b]), "".join(new[c:d]))]
        for x, y in pairs:
            return f"- {x.strip()[:150] or 'nothing'}; + {y.strip()[:150] or 'nothing'}"
    return None


def same_line(a: str, b: str) -> bool:
    """Whether two lines have the same text, and numbers that are the same to six digits: another
    processor adds in another order.
    """
    old, new = NUMBER.split(a), NUMBER.split(b)
    return old[::2] == new[::2] and all(
        x == y or math.isclose(float(x), float(y), rel_tol=1e-6, abs_tol=1e-12)
        for x, y in zip(old[1::2], new[1::2], strict=True)
    )


def changed_words(before: list[dict], now: list[dict]) -> str | None:
    """The words that are gone and those that are new."""
    old, new = words(before), words(now)
    if old == new:
        return None
    gone, new = (" ".join(sorted(s)) for s in (old - new, new - old))
    return f"- {gone[:300] or 'nothing'}; + {new[:300] or 'nothing'}"


def compares_numbers(path: Path, cell: dict) -> bool:
    """Whether the numbers of a cell's output are those of every machine and time."""
    source = "".join(cell["source"])
    return any(room in path.parts for room in COMPUTED) and "#| varies" not in source


def outputs_now(path: Path, found: Path, slow: bool) -> None:
    """Run a notebook; write the outputs of each cell that ran, by its number, into `found`."""
    from execnb.shell import CaptureShell
    from fastcore.nbio import read_nb
    from fastcore.xtras import working_directory
    from nbdev.test import nb_test_cells

    skipped = [*NOT_RUN, *([] if slow else ["slow"])]
    run = {c.id for c in nb_test_cells(path, skipped)}
    nb = read_nb(path)
    shell = CaptureShell(path)
    with working_directory(path.parent):
        shell.run_all(nb, exc_stop=True, preproc=lambda cell: cell.id not in run)
    found.write_text(json.dumps({i: c.outputs for i, c in enumerate(nb.cells) if c.id in run}))


def compared(path: Path, write: bool, slow: bool = False) -> list[str]:
    """One line per cell whose output is not stored or differs."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "outputs.json"
        process = multiprocessing.Process(target=outputs_now, args=(path, found, slow))
        process.start()
        process.join(DEADLINE_S)
        process.kill()
        process.join()
        if not found.exists():
            return ["  it did not run to its end"]
        now = json.loads(found.read_text())
    nb, lines = json.loads(path.read_text()), []
    for i, outputs in ((int(i), o) for i, o in now.items()):
        outputs = kept(outputs)
        before = nb["cells"][i]["outputs"]
        if outputs and not before:
            nb["cells"][i]["outputs"] = outputs
            said = " ".join("\n".join(map(text_of, outputs)).split())
            lines.append(f"  cell {i}: nothing is stored; + {said[:300]}")
            continue
        compare = first_difference if compares_numbers(path, nb["cells"][i]) else changed_words
        if said := compare(kept(before), outputs):
            lines.append(f"  cell {i}: {said}")
            nb["cells"][i]["outputs"] = outputs
    if write and lines:
        path.write_text(json.dumps(nb, indent=1, ensure_ascii=False) + "\n")
    return lines


def main() -> int:
    """Print what differs; 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="parts of the notebooks' paths")
    parser.add_argument("--write", action="store_true", help="store the outputs that differ")
    parser.add_argument("--slow", action="store_true", help="run slow cells, too")
    asked = parser.parse_args()
    os.environ |= {"IN_TEST": "1", "OMP_WAIT_POLICY": "passive"}
    stale = looked_at = 0
    for path in sorted((ROOT / "nbs").rglob("*.ipynb")):
        name = path.relative_to(ROOT / "nbs").as_posix()
        if "/runs/" in f"/{name}" or not any(n in name for n in asked.names or [""]):
            continue
        looked_at += 1
        if lines := compared(path, asked.write, asked.slow):
            stale += 1
            print(name, *lines, sep="\n", flush=True)
    if not looked_at:
        print(f"no notebook has {' or '.join(asked.names)} in its path, for example 60_analysis/55")
        return 2
    if asked.write:
        print(f"stored anew: {stale} notebooks; type make notebooks")
    return int(stale > 0 and not asked.write)


if __name__ == "__main__":
    sys.exit(main())
