"""Logs as they should not be: cut, shuffled, interleaved, coloured, of other encodings, on one
gigantic line.

No importer may crash, and none may invent a number: each one in the run file is in the text, is a
unit's conversion of one that is, or stands at a place that an event names as derived, with its
formula.
"""

import json
import random
import re
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from importer_excerpts import EXCERPTS, TEXT_FORMATS, TRAINER_CONSOLE, write_long

from llmbench.core.errors import LlmbenchError
from llmbench.core.schema import dump_run
from llmbench.importers.base import Source, Tally
from llmbench.importers.finish import run_file
from llmbench.importers.formats import detect
from llmbench.importers.results.table import RESULTS
from llmbench.importers.table import FORMATS, import_path
from llmbench.importers.text import clean
from llmbench.importers.trackers.table import TRACKERS

BY_NAME = {f.name: f for f in FORMATS}
_TOKEN = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_POWERS = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SCALED = re.compile(r"(?<![\d,.])([-+]?\d[\d,]{0,12}(?:\.\d{1,9})?)([KMBGTPE])\b")  # 14.2K
_FACTORS = (1, 1e-3, 2**20, 2**30, 1e9)
# Where numbers stand that no log says: choices of ours, counts of events, places of rows.
_OURS = re.compile(
    r"^(spec\.warmup_steps|events\.\d+\.(lost_steps|step)|ranks\.\d+\.rank|env\.devices\.\d+\.rank|schema|study|run_id|skipped_steps)"
)


def key(value: float) -> str:
    return f"{value:.9g}"


def numbers_in(text: str) -> set[str]:
    "All numbers of a text in every unit that an importer converts to, as keys."
    found = {0.0}
    for token in _TOKEN.findall(text):
        for part in {token, token.replace(",", ""), *token.split(",")}:
            try:
                found |= {float(part), abs(float(part))}
            except ValueError:
                continue
    for token, power in _SCALED.findall(text):
        try:
            found.add(float(token.replace(",", "")) * _POWERS[power])
        except ValueError:
            continue
    return {key(v * f) for v in found for f in _FACTORS} | {
        key(round(v * f)) for v in found if abs(v) < 1e12 for f in (2**20, 2**30, 1e9)
    }


def numbers_of(value, place: str = ""):
    "Place and value of all numbers of a run file."
    if isinstance(value, dict):
        for k, v in value.items():
            yield from numbers_of(v, f"{place}.{k}" if place else k)
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from numbers_of(v, f"{place}.{i}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def derived_places(run: dict) -> tuple[str, ...]:
    return tuple(
        e["text"].partition(" = ")[0] for e in run["events"] if e["kind"] == "derived" and e["text"]
    )


def check(name: str, content: bytes, path, text: str | None = None) -> int:
    "Import `content`; assert that nothing is invented. The number of rows."
    path.write_bytes(content)
    source, tally = Source(path), Tally()
    drafts = BY_NAME[name].read(source, tally)
    if text is None:
        text = "\n".join(clean(line) for line in content.splitlines())
    known = numbers_in(text)
    for draft in drafts:
        try:
            run = dump_run(run_file(draft, source))
        except LlmbenchError as e:  # steps or ranks that contradict each other are not guessed at
            assert re.search(r"is no run file: (steps|ranks)", str(e)) and "\n" not in str(e), e
            continue
        derived = derived_places(run)
        for place, value in numbers_of(run):
            if _OURS.match(place) or any(place.startswith(d) for d in derived):
                continue
            if place.startswith("steps.mean_of") or place == "spec.batch.global_sequences":
                continue
            assert key(value) in known, f"{name}: {place} = {value} is not in the text"
        json.dumps(run, allow_nan=False)
    return sum(len(d.steps) for d in drafts)


def cut(rng, data):
    a, b = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[a:] if rng.random() < 0.5 else data[:b]


def shuffle(rng, data):
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def interleave(rng, data):
    "Several ranks write the same lines, each in its order."
    lines = data.splitlines(keepends=True)
    ranks = [[b"[rank%d]:" % r + line for line in lines] for r in range(rng.randint(2, 4))]
    out = []
    while any(ranks):
        out.append(rng.choice([r for r in ranks if r]).pop(0))
    return b"".join(out)


def glue(rng, data):
    return re.sub(rb"\n", lambda m: b"" if rng.random() < 0.3 else m[0], data)


def colour(rng, data):
    return re.sub(rb" ", lambda m: b" \x1b[38;2;1;2;3m" if rng.random() < 0.2 else m[0], data)


def ends(rng, data):
    return data.replace(b"\n", rng.choice([b"\r\n", b"\r", b"\n\n"]))


def bytes_in(rng, data):
    at = rng.randrange(len(data) + 1)
    return (
        data[:at]
        + rng.choice([b"\xff\xfe", b"\x00", b"\xe9\x80", b"\xc3\x28"]) * rng.randint(1, 5)
        + data[at:]
    )


def gigantic(rng, data):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice([b"x", b"x ", b"9", b"1 "]) * 70_000 + data[at:]


def numbers(rng, data):
    "Some numbers become what no number should be."
    odd = [
        b"nan",
        b"inf",
        b"-inf",
        b"-1",
        b"0",
        b"1e400",
        b"9" * 30,
        b"1_0",
        b"0x1f",
        b"",
        b"1.2.3",
        b"1,2",
    ]
    return re.sub(
        rb"\d+(?:\.\d+)?", lambda m: rng.choice(odd) if rng.random() < 0.1 else m[0], data
    )


def repeat(rng, data):
    return data * rng.randint(2, 3)


def swap(rng, data):
    lines = data.splitlines(keepends=True)
    i, j = rng.randrange(len(lines) or 1), rng.randrange(len(lines) or 1)
    if lines:
        lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


def doubled(rng, data):
    "Some lines come twice or thrice, and some not at all."
    return b"".join(
        line * rng.choice((0, 1, 1, 1, 1, 2, 3)) for line in data.splitlines(keepends=True)
    )


def unspaced(rng, data):
    return re.sub(rb" +", lambda m: b"" if rng.random() < 0.1 else m[0], data)


def noise(rng, data):
    "Any bytes in any place."
    found = bytearray(data)
    for _ in range(rng.randint(1, 20)):
        if found:
            found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


def huge(rng, data):
    "Numbers of thousands of digits, beyond 64 bits, beyond a double, or of another script."
    odd = [
        b"9" * 5000,
        b"0" * 5000 + b"7",
        b"9223372036854775808",
        b"9007199254740993",
        b"1e308",
        b"-1e308",
        b"1e-400",
        "١٢".encode(),
        "²".encode(),
        b"+",
    ]
    return re.sub(
        rb"\d+(?:\.\d+)?", lambda m: rng.choice(odd) if rng.random() < 0.05 else m[0], data
    )


MUTATIONS = (
    cut,
    shuffle,
    interleave,
    glue,
    colour,
    ends,
    bytes_in,
    gigantic,
    numbers,
    repeat,
    swap,
    doubled,
    unspaced,
    noise,
    huge,
)


def mutated(name: str, seed: int, chosen) -> bytes:
    rng, data = random.Random(seed), EXCERPTS[name]
    for i in chosen:
        data = MUTATIONS[i](rng, data)[:2_000_000]
    return data


_PLAN = st.tuples(
    st.integers(0, 2**32), st.lists(st.integers(0, len(MUTATIONS) - 1), min_size=1, max_size=4)
)
_QUICK = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_every_text_format_has_an_excerpt():
    results = {f.name for f in (*TRACKERS, *RESULTS)}
    assert set(BY_NAME) - results == set(TEXT_FORMATS) and set(EXCERPTS) <= set(BY_NAME), (
        "add a few lines to importer_excerpts.py"
    )


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_the_excerpt_itself_invents_nothing(name, tmp_path):
    assert check(name, EXCERPTS[name], tmp_path / "a.log") == 6


@pytest.mark.parametrize("name", EXCERPTS)
def test_each_mutation_alone(name, tmp_path):
    for i in range(len(MUTATIONS)):
        check(name, mutated(name, 17 + i, [i]), tmp_path / "a.log")


@pytest.mark.parametrize("name", EXCERPTS)
def test_mutations_together(name, tmp_path_factory):
    path = tmp_path_factory.mktemp(name) / "a.log"

    @_QUICK
    @given(_PLAN)
    def run(plan):
        check(name, mutated(name, *plan), path)

    run()


def campaign(name: str, seeds: range, folder) -> None:
    """As a user has it: one mutated file, a format that is named or found, run files written. Only
    our own error may come out.
    """
    path = folder / "a.log"
    for seed in seeds:
        rng = random.Random(f"{name} {seed}")
        path.write_bytes(
            mutated(name, seed, [rng.randrange(len(MUTATIONS)) for _ in range(rng.randint(1, 4))])
        )
        start = time.process_time()
        try:
            done = import_path(path, format=name if rng.random() < 0.7 else None)
            assert (
                [r.source.format for r in done.runs]
                and done.missing() is not None
                and done.write(folder / "results")
            )
        except LlmbenchError:
            pass
        took = time.process_time() - start
        assert took < 20, (
            f"{name}, seed {seed}: {took:.0f} s of processor for {path.stat().st_size} bytes"
        )


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_no_mutated_log_crashes_an_importer(name, tmp_path):
    campaign(name, range(40), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_2000_mutated_logs_crash_no_importer(name, tmp_path):
    campaign(name, range(2000), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXCERPTS)
def test_many_mutations(name, tmp_path_factory):
    path = tmp_path_factory.mktemp(name) / "a.log"

    @settings(_QUICK, max_examples=100)
    @given(_PLAN)
    def run(plan):
        check(name, mutated(name, *plan), path)

    run()


@pytest.mark.parametrize("name", EXCERPTS)
def test_a_cut_anywhere_invents_nothing(name, tmp_path):
    data = EXCERPTS[name]
    for at in range(0, len(data), max(1, len(data) // 12)):
        check(name, data[:at], tmp_path / "a.log")


def test_the_console_of_the_trainer_invents_nothing(tmp_path):
    "It is no log of a format of its own, so it is not among the excerpts."
    assert check("hf-trainer", TRAINER_CONSOLE, tmp_path / "a.log") == 6
    for seed in range(150):
        rng, data = random.Random(seed), TRAINER_CONSOLE
        for change in rng.sample(MUTATIONS, rng.randint(1, 3)):
            data = change(rng, data)[:2_000_000]
        check("hf-trainer", data, tmp_path / "a.log")


def test_arbitrary_bytes_are_no_format(tmp_path):
    rng = random.Random(5)
    path = tmp_path / "a"
    for _ in range(20):
        path.write_bytes(rng.randbytes(5000))
        assert detect(Source(path), FORMATS) is None


_ONE = """
import sys, time
from llmbench.importers.table import import_path
start = time.process_time()
done = import_path(sys.argv[1])
done.write(sys.argv[2])
# ru_maxrss would begin with the size of the process that started this one
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(done.format, done.steps, time.process_time() - start, peak)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_100_mb_in_bounded_memory(name, tmp_path):
    """Rows that never repeat, 100 MB of them: at most 300 MiB of memory; the time is printed, and
    bounded loosely. Two formats have rows so short that 100 MB are more than a run file holds.
    """
    path = tmp_path / "long.log"
    size = 50 * 10**6 if name in ("nanogpt", "modded-nanogpt") else 100 * 10**6
    rows = write_long(name, path, size)
    done = subprocess.run(
        [sys.executable, "-c", _ONE, path, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
    )
    kind, steps, seconds, peak = done.stdout.split()
    print(
        f"{kind}: {int(steps):,} rows, {float(seconds):.1f} s of processor, {float(peak):.0f} MiB"
    )
    assert int(steps) >= rows - 1 and float(peak) < 300 and float(seconds) < 60
