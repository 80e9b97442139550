"""Result files, event files and profiles as they should not be: nothing crashes, and no number is
invented.
"""

import gzip
import json
import random
import re

import pytest
from importer_results import NUMBERS_OF_BINARY, RESULT_EXCERPTS, TEXT_RESULTS

from llmbench.core.errors import LlmbenchError, RequestError
from llmbench.core.schema import dump_run
from llmbench.importers.base import Source, Tally
from llmbench.importers.finish import run_file
from llmbench.importers.formats import detect
from llmbench.importers.results.table import RESULTS
from llmbench.importers.structured import open_text
from llmbench.importers.table import FORMATS, import_path
from llmbench.importers.trackers.table import TRACKERS

BY_NAME = {f.name: f for f in (*TRACKERS, *RESULTS)}
RUNS = {"mlperf-system": 0, "ado": 2, "superbench": 2}  # one in every other excerpt
_TOKEN = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_FACTORS = (1, 1e-3, 1e-6, 1e-9, 2**20, 2**30, 1e9)
# No log says these: choices of ours, rounded conversions, places of rows, and what an event says in
# words beside.
_OURS = re.compile(
    r"^(spec\.warmup_steps|events\.|ranks\.\d+\.rank|env\.devices\.\d+\.(rank|memory_gib)|steps\.mean_of|spec\.batch\.global_sequences|skipped_steps)"
)


def key(value: float) -> str:
    return f"{value + 0.0:.9g}"  # -1e-400 is -0.0, which a set does not tell from 0.0


def numbers_in(text: str) -> set[str]:
    found = {0.0} | {
        float(t) for token in _TOKEN.findall(text) for t in {token, token.lstrip("+-")}
    }
    finite = [v for v in found if abs(v) < 1e300]
    return {key(v * f) for v in finite for f in _FACTORS} | {
        key(round(v * f)) for v in finite if abs(v) < 1e12 for f in (2**20, 2**30, 1e9)
    }


def numbers_of(value, place: str = ""):
    if isinstance(value, dict | list):
        for k, v in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_of(v, f"{place}.{k}" if place else str(k))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def check(name: str, content: bytes, path, text: str | None = None) -> int:
    """Import; assert that each number of the run files is in the text, or at a place that an event
    calls derived. The number of runs.
    """
    path.write_bytes(content)
    source, tally = Source(path), Tally()
    drafts = [d for d in BY_NAME[name].read(source, tally) if len(d.steps) or d.facts]
    if text is None:
        with open_text(source) as file:
            text = file.read()
    known = numbers_in(text)
    for draft in drafts:
        try:
            run = dump_run(run_file(draft, source))
        except LlmbenchError as e:  # steps or ranks that contradict each other are not guessed at
            assert re.search(r"is no run file: (steps|ranks)", str(e)) and "\n" not in str(e), e
            continue
        derived = [
            e["text"].partition(" = ")[0]
            for e in run["events"]
            if e["kind"] == "derived" and e["text"]
        ]
        odd = [
            (p, v)
            for p, v in numbers_of(run)
            if not _OURS.match(p)
            and not any(p.startswith(d) for d in derived)
            and key(v) not in known
        ]
        assert not odd, f"{name}: {odd[:3]} not in the text"
        json.dumps(run, allow_nan=False).encode()
    return len(drafts)


def cut(rng, data):
    return (
        data[: rng.randrange(len(data) + 1)]
        if rng.random() < 0.7
        else data[rng.randrange(len(data) + 1) :]
    )


def shuffle(rng, data):
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def interleave(rng, data):
    ranks = [[b"%d: " % r + line for line in data.splitlines(keepends=True)] for r in range(2)]
    out = []
    while any(ranks):
        out.append(rng.choice([r for r in ranks if r]).pop(0))
    return b"".join(out)


def colour(rng, data):
    return b"".join(b"\x1b[32m" + line.rstrip(b"\n") + b"\x1b[0m\n" for line in data.splitlines())


def ends(rng, data):
    return data.replace(b"\n", rng.choice([b"\r\n", b"\n\n", b"\r"]))


def encoding(rng, data):
    return rng.choice(
        [
            b"\xef\xbb\xbf" + data,
            data.decode("utf-8", "replace").encode("utf-16"),
            data.replace(b'"', b"\xe9", 3),
            b"\xff\xfe" + data,
        ]
    )


def gigantic(rng, data):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice([b"x", b"9", b"[", b" ", b'"', b"\x00"]) * 300_000 + data[at:]


def numbers(rng, data):
    odd = [
        b"NaN",
        b"Infinity",
        b"-1",
        b"0",
        b"1e400",
        b"9" * 30,
        b"null",
        b'"x"',
        b"",
        b"1.2.3",
        b"[]",
        b"{}",
        b"true",
    ]
    return re.sub(
        rb"\d+(?:\.\d+)?", lambda m: rng.choice(odd) if rng.random() < 0.1 else m[0], data
    )


def flip(rng, data):
    out = bytearray(data)
    for _ in range(rng.choice([1, 5, 50])):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def twice(rng, data):
    return data * 2


MUTATIONS = (cut, shuffle, interleave, colour, ends, encoding, gigantic, numbers, flip, twice)


def _fuzz(name: str, path, rounds: int) -> None:
    rng = random.Random(name)
    for at in range(rounds):
        content = RESULT_EXCERPTS[name]
        for change in [
            MUTATIONS[at % len(MUTATIONS)],
            *rng.choices(MUTATIONS, k=at // len(MUTATIONS) % 3),
        ]:
            content = change(rng, content)
        # What was written anew (a packed sheet, a flipped byte of a float) cannot be told from the
        # truth without a checksum.
        text = NUMBERS_OF_BINARY.get(name)
        check(name, content, path, text)


@pytest.mark.parametrize("name", RESULT_EXCERPTS)
def test_an_excerpt_is_known_and_invents_nothing(name, tmp_path):
    path = tmp_path / "holiday.jpg"
    assert check(name, RESULT_EXCERPTS[name], path, NUMBERS_OF_BINARY.get(name)) == RUNS.get(
        name, 1
    )
    assert detect(Source(path), FORMATS).name == name


@pytest.mark.parametrize("name", RESULT_EXCERPTS)
def test_mutations(name, tmp_path):
    _fuzz(name, tmp_path / "a", 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULT_EXCERPTS)
def test_many_mutations(name, tmp_path):
    _fuzz(name, tmp_path / "a", 2000)


@pytest.mark.parametrize("name", TEXT_RESULTS)
def test_packed_or_not(name, tmp_path):
    if name in ("mlperf-system", "optimum-benchmark"):
        pytest.skip("never packed")
    runs = []
    for content in (RESULT_EXCERPTS[name], gzip.compress(RESULT_EXCERPTS[name])):
        (tmp_path / "a").write_bytes(content)
        source = Source(tmp_path / "a")
        runs.append(
            [dump_run(run_file(d, source))["steps"] for d in BY_NAME[name].read(source, Tally())]
        )
    assert runs[0] == runs[1]


# Mutations that crashed an importer, smallest first.
_CRASHED = {
    "optimum-benchmark": (
        b"training.runtime(s),training.throughput(samples/s),training_arguments.per_device_train_batch_size\n1e30,1e29,1\n",
        b'environment.gpus,training.runtime(s)\n"{[]: 1}",2\n',
        b'training.runtime(s),a\n1,"' + b"x" * 200_000 + b'"\n',
    ),
    "rocprof": (
        (
            b'{"rocprofiler-sdk-tool": [{"kernel_symbols": [{"kernel_id": [1]}], "buffer_records":'
            b' {"kernel_dispatch": [{"dispatch_info": {"kernel_id": {}}, "start_timestamp": 1,'
            b' "end_timestamp": 2}]}}]}'
        ),
    ),
    "nsys-stats-text": (
        b"Executing 'cuda_gpu_kern_sum' stats report\nTime (%),Name\n"
        + b"1,"
        + b"x" * 200_000
        + b"\n",
    ),
}


@pytest.mark.parametrize("name", _CRASHED)
def test_what_crashed_an_importer_no_longer_does(name, tmp_path):
    for content in _CRASHED[name]:
        (tmp_path / "a").write_bytes(content)
        source = Source(tmp_path / "a")
        for draft in BY_NAME[name].read(source, Tally()):
            run_file(draft, source)


def test_a_run_is_ok_only_where_its_file_says_that_it_ended(tmp_path):
    def ended(name: str, content: bytes) -> set[str]:
        (tmp_path / "a").write_bytes(content)
        return {r.status.value for r in import_path(tmp_path / "a", format=name).runs}

    for name in set(RESULT_EXCERPTS) - {"mlperf-system"}:
        says = {
            "tensorboard": "cancelled",
            "automodel-jsonl": "cancelled",
            "lightning-csv": "cancelled",
            "wandb-history": "cancelled",
            "wandb-summary": "cancelled",
            "ado": "ok timeout",
        }.get(name, "ok")
        assert ended(name, RESULT_EXCERPTS[name]) == set(says.split()), name
    mllog, milabench = TEXT_RESULTS["mlperf-mllog"], TEXT_RESULTS["milabench-data"]
    assert ended("mlperf-mllog", mllog[: mllog.index(b':::MLLOG {"key": "run_stop"')]) == {
        "cancelled"
    }
    assert ended("mlperf-mllog", mllog.replace(b'"success"', b'"aborted"')) == {"cancelled"}
    assert ended("milabench-data", milabench[: milabench.index(b'{"event": "end"')]) == {
        "cancelled"
    }
    assert ended(
        "hf-trainer",
        TEXT_RESULTS["hf-trainer"]
        .replace(b'"train_runtime"', b'"x"')
        .replace(b'"global_step": 45', b'"global_step": 40'),
    ) == {"cancelled"}
    lost = [{"loss": "NaN" if 1 < s < 150 else 2.0, "step": s} for s in range(1, 151)]
    state = json.dumps({"global_step": 150, "max_steps": 150, "log_history": lost}).encode()
    assert ended("hf-trainer", state) == {"diverged"}, "more than 100 losses that are no numbers"


def test_a_report_with_a_runtime_alone_has_its_step_time(tmp_path):
    "Without a throughput: the runtime over the steps after warm-up."
    head = "training.runtime(s),scenario.training_arguments.max_steps,scenario.warmup_steps\n"
    (tmp_path / "a").write_text(f"{head}10,110,10\n")
    found = import_path(tmp_path / "a")
    assert found.format == "optimum-benchmark"
    assert [(run.steps.time_s, run.steps.mean_of) for run in found.runs] == [([0.1], [100])]


def test_no_row_is_an_error_and_an_unknown_file_gets_the_nearest(tmp_path):
    for content, said in (
        (
            RESULT_EXCERPTS["mlperf-system"],
            "the description of an MLPerf system, which holds no run",
        ),
        (
            b'{"log_history": [{"eval_loss": 1.5, "step": 3}], "max_steps": 3}',
            "no row of hf-trainer",
        ),
        (b"once upon a time training.runtime", "Nearest: "),
        (
            b'import json\n\nX = \'{"event": "config", "data": {}}\'\nY = ":::MLLOG {"\n',
            "source code or a document",
        ),
    ):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(RequestError) as e:
            import_path(tmp_path / "a")
        assert said in str(e.value) and "\n" not in str(e.value), str(e.value)


def test_every_result_format_has_an_excerpt():
    assert set(RESULT_EXCERPTS) == set(BY_NAME), (
        "add an excerpt of a few lines to importer_results.py"
    )
