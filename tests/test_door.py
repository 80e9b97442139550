"""What a results folder may hold: implausible values, damaged bytes, special files. Each is named,
none changes the numbers of the others.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from notebooks import ROOT
from test_hostile_site import full_run

from llmbench.analysis.groups import run_rows
from llmbench.analysis.rates import RUN_COLUMNS
from llmbench.compare.audit.verb import audit_paths
from llmbench.core.bounds import BOUNDS, bounds_table
from llmbench.core.door import read_run, run_from
from llmbench.core.errors import LlmbenchError
from llmbench.core.schema import RunFile, json_schema
from llmbench.launch.sweep.sheet import earlier_run
from llmbench.store.database import open_store
from llmbench.store.results import parse_run, read_results

PUBLISHED = ROOT / "reports" / "published"
SOUND = sorted((PUBLISHED / "cpu-quickstart").glob("*/run.json"))[:20]
MUTATED = json.loads(SOUND[7].read_bytes()) | {"study": "other", "run_id": "other.zero.00000000.1"}


def put(folder, content, name="run.json"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(
        content if isinstance(content, bytes) else json.dumps(content).encode()
    )
    return folder / name


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    for file in SOUND:
        put(folder / "cpu-quickstart" / file.parent.name, file.read_bytes())
    return folder


def numbers(results):
    "All that the public views say of the sound runs, and the problems by file."
    with open_store(results) as store:
        mine = "WHERE run_id LIKE 'cpu-quickstart.%' ORDER BY ALL"
        rows = [
            store.sql(f"SELECT * FROM {view} {mine}").fetchall()
            for view in ("runs", "steps", "ranks", "details")
        ]
        groups = store.sql(
            "SELECT * FROM groups WHERE study = 'cpu-quickstart' ORDER BY ALL"
        ).fetchall()
        return [*rows, groups], dict(store.sql("SELECT file, problem FROM quarantine").fetchall())


def but(**changes):
    """The run with some fields changed, `__` for the dot between two names; `...` takes the field
    away.
    """
    run = json.loads(json.dumps(MUTATED))
    for path, value in changes.items():
        *parents, last = (int(name) if name.isdigit() else name for name in path.split("__"))
        node = run
        for name in parents:
            node = node[name]
        node[last] = value
    return run


STEPS = len(MUTATED["steps"]["step"])
IMPLAUSIBLE = {
    "loss of 1e308": (but(steps__loss__3=1e308), "steps.loss.3: 1e+308"),
    "world size 0": (but(spec__world_size=0), "spec.world_size: 0: Input should be"),
    "world size of 10^15": (
        but(spec__world_size=10**15),
        "spec.world_size: 1000000000000000: Input should be",
    ),
    "sequence length of 2^53": (but(spec__seq_len=2**53), "spec.seq_len: 9007199254740992"),
    "steps repeated": (but(steps__step=[0] * STEPS), "steps.step: 0 follows 0"),
    "steps that fall": (but(steps__step=list(range(STEPS))[::-1]), "step numbers must increase"),
    "a rank twice": (but(ranks__1__rank=0), "ranks: rank 0 is listed twice"),
    "a rank beyond the world size": (but(ranks__1__rank=7), "ranks: rank 7"),
    "rank times shorter than the steps": (
        but(ranks__0__time_s=[0.1] * (STEPS - 1)),
        f"{STEPS - 1} entries for {STEPS} steps",
    ),
    "rank times longer than the steps": (
        but(ranks__0__time_s=[0.1] * (STEPS + 1)),
        f"{STEPS + 1} entries for {STEPS} steps",
    ),
    "a start in the far future": (
        but(started_at="2999-01-01T00:00:00Z", ended_at=None),
        "started_at: 2999-01-01T00:00:00Z",
    ),
    "a start before 2000": (but(started_at="1970-01-01T00:00:00Z"), "started_at: 1970"),
    "an empty start": (but(started_at=""), "started_at: ''"),
    "a start that is no moment": (but(started_at="2026-13-45T00:00:00Z"), "no such moment"),
    "an end before the start": (but(ended_at="2020-01-01T00:00:00Z"), "before the start"),
    "warm-up longer than the run": (but(spec__warmup_steps=10**6), "spec.warmup_steps: 1000000"),
    "no steps under ok": (but(steps={}, ranks=[]), "no step of"),
    "degrees that do not multiply": (but(spec__strategy__dp=64), "spec.world_size"),
    "a study that climbs": (but(study="../../../pwn"), "study: '../../../pwn'"),
    "a run id that climbs": (but(run_id="../x"), "run_id: '../x'"),
    "a NUL in the study": (but(study="a\0b"), "study: 'a\\x00b'"),
    "a line feed at the end of the study": (but(study="other\n"), "study: 'other\\n'"),
    "a host that is an option": (
        but(ranks__0__host="-oProxyCommand=x"),
        "ranks.0.host: '-oProxyCommand=x'",
    ),
    "a strategy that is a shortcode": (
        but(spec__strategy__name="{{< include /etc/passwd >}}"),
        "spec.strategy.name",
    ),
    "a framework that is a path": (but(env__framework="../up"), "env.framework"),
    "an escape sequence in the reason": (but(status="crash", reason="\x1b[31mred"), "reason"),
    "a megabyte in one field": (but(reason="x" * 10**6), "reason"),
    "a true for a number": (but(spec__world_size=True), "spec.world_size: True"),
    "a text for a number": (but(spec__world_size="2"), "spec.world_size: '2'"),
    "a step in no time": (but(steps__time_s__2=0.0), "steps.time_s.2: 0.0"),
    "negative memory": (but(env__devices__0__memory_gib=-1.0), "env.devices.0.memory_gib: -1.0"),
}

TEXT = json.dumps(MUTATED, separators=(",", ":"))
DAMAGED = {
    "a key twice": (
        TEXT.replace('"attempt":', '"attempt":9,"attempt":').encode(),
        "'attempt' is given twice",
    ),
    "a key twice, with a space": (
        TEXT.replace('"attempt":', '"attempt" : 9 , "attempt":').encode(),
        "'attempt' is given twice",
    ),
    "a key twice in the request": (
        TEXT.replace('"world_size":', '"world_size":4,"world_size":').encode(),
        "'world_size' is given twice",
    ),
    "an unknown key": (TEXT.replace('"attempt":', '"atempt":9,"attempt":').encode(), "atempt: 9"),
    "NaN": (TEXT.replace('"energy_j":null', '"energy_j":NaN').encode(), "NaN is no JSON"),
    "Infinity": (
        TEXT.replace('"energy_j":null', '"energy_j":-Infinity').encode(),
        "-Infinity is no JSON",
    ),
    "1e999": (TEXT.replace('"energy_j":null', '"energy_j":1e999').encode(), "energy_j"),
    "a byte order mark": (b"\xef\xbb\xbf" + TEXT.encode(), "byte order mark of UTF-8"),
    "UTF-16": (TEXT.encode("utf-16"), "byte order mark of UTF-16"),
    "no UTF-8": (TEXT.replace("other", "\xff").encode("latin-1"), "not UTF-8 at byte"),
    "half of it": (TEXT[: len(TEXT) // 2].encode(), "not JSON"),
    "nothing": (b"", "not JSON"),
    "zero bytes": (b"\0" * 1000, "not JSON"),
    "nested deeply": (b"[" * 10**6, "nested too deeply"),
    "nested deeply in a field": (
        TEXT.replace(
            '"energy_j":null', '"energy_j":' + '{"a":' * 10**5 + "1" + "}" * 10**5
        ).encode(),
        "nested too deeply",
    ),
    "a list": (b"[]", "a list"),
}


@pytest.mark.parametrize("name", [*IMPLAUSIBLE, *DAMAGED])
def test_a_value_that_cannot_be_is_named_with_its_field(name):
    content, expected = (IMPLAUSIBLE | DAMAGED)[name]
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    for read in (parse_run, run_from):
        with pytest.raises(LlmbenchError) as e:
            read(content)
        assert expected in str(e.value) and len(str(e.value)) < 500, str(e.value)


def test_what_was_published_and_what_is_sound_is_read():
    files = sorted(PUBLISHED.glob("*/*/run.json"))
    assert len(files) >= 192 and all(
        parse_run(f.read_bytes())["run_id"] == f.parent.name for f in files
    )
    assert parse_run(json.dumps(MUTATED).encode())["study"] == "other"


def special(folder):
    """One of everything that is called run.json and is none; the part of its problem that has to be
    said.
    """
    for name in ("pipe", "device", "dangling", "loop", "directory", "sparse"):
        (folder / name).mkdir(parents=True)
    os.mkfifo(folder / "pipe/run.json")
    (folder / "device/run.json").symlink_to("/dev/zero")
    (folder / "dangling/run.json").symlink_to(folder / "nowhere")
    (folder / "loop/run.json").symlink_to(folder / "loop/again")
    (folder / "loop/again").symlink_to(folder / "loop/run.json")
    (folder / "directory/run.json").mkdir()
    with (folder / "sparse/run.json").open("wb") as f:
        f.truncate(2**40)
    put(Path(os.fsdecode(os.fsencode(folder) + b"/\xff")), TEXT.encode())
    put(folder / "line\nfeed", TEXT.encode())
    put(folder / "/".join("d" * 60), TEXT.encode())
    put(folder / "declared", b'{"study": "../up"}', "study.json")
    put(folder / "cut", b'{"study": ', "study.json")
    return {
        "pipe/run.json": "a named pipe",
        "device/run.json": "a device",
        "dangling/run.json": "a link to a file that is not there",
        "loop/run.json": "leads to itself",
        "directory/run.json": "a folder",
        "sparse/run.json": "larger than 256 MiB",
        "\\xff/run.json": "no UTF-8",
        "line\\nfeed/run.json": "control characters",
        "/".join("d" * 50) + "/run.json": "50 folders deep",
        "declared/study.json": "study: '../up'",
        "cut/study.json": "not JSON",
    }


def test_special_files_are_named_and_change_nothing(results):
    before, none = numbers(results)
    assert not none and len(before[0]) == 20
    expected = special(results / "odd")
    began = time.monotonic()
    after, problems = numbers(results)
    assert time.monotonic() - began < 5 and after == before
    assert {file: True for file in problems} == {f"results/odd/{file}": True for file in expected}
    assert all(why in problems[f"results/odd/{file}"] for file, why in expected.items()), problems
    assert {p["file"] for p in read_results([results]).quarantine} == set(problems), (
        "the report reads the same"
    )
    lost = {Path(file).parent.name for file, _ in audit_paths([results]).problems}
    assert {"pipe", "device", "dangling", "loop", "directory", "sparse", "declared", "cut"} <= lost


def test_the_commands_end_normally_and_name_what_was_set_aside(results):
    special(results / "odd")
    put(results / "odd/value", but(steps__loss__0=1e308))
    commands = {
        "query": ["SELECT file, problem FROM quarantine", "--results", str(results)],
        "compare": ["strategy=ddp", "strategy=fsdp", "--results", str(results)],
        "audit": [str(results)],
    }
    for verb, words in commands.items():
        done = subprocess.run(
            [sys.executable, "-m", "llmbench.cli", verb, *words],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "Traceback" not in done.stderr and done.returncode in (0, 1), (verb, done.stderr)
        said = done.stdout + done.stderr
        assert "set aside" in said or "odd/value/run.json" in said, (verb, said)


def test_a_results_folder_whose_name_is_no_utf8_is_read(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff"))
    for file in SOUND[:2]:
        put(folder / "cpu-quickstart" / file.parent.name, file.read_bytes())
    found, problems = numbers(folder)
    assert len(found[0]) == 2 and not problems


def test_no_file_takes_the_place_of_another(results):
    before, _ = numbers(results)
    thief = json.loads(SOUND[0].read_bytes())
    thief["steps"]["loss"][0] += 1.0
    put(results / "aaa" / "first", thief)
    put(
        results / "aaa",
        {"study": "cpu-quickstart", "baseline": {"strategy": "fsdp"}, "varies": []},
        "study.json",
    )
    put(
        results / "cpu-quickstart",
        (PUBLISHED / "cpu-quickstart/study.json").read_bytes(),
        "study.json",
    )
    declared, _ = numbers(results)
    (results / "aaa/study.json").unlink()
    after, problems = numbers(results)
    assert after == declared, "a study's own file counts in its own folder"
    assert [row[:1] for row in after[0]] == [row[:1] for row in before[0]] and list(problems) == [
        "results/aaa/first/run.json"
    ]


def test_another_runs_file_and_a_damaged_one_are_no_earlier_run(tmp_path):
    from llmbench.spec.request import run_id
    from llmbench.spec.resolve import resolve_run

    spec = resolve_run(
        {
            "model": "gpt-tiny",
            "strategy": "single",
            "world_size": 1,
            "seq_len": 64,
            "batch": {"micro": 2, "accum": 1},
        }
    )
    folder = tmp_path / run_id(spec)
    for content in (
        json.dumps(MUTATED).encode(),
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"[" * 10**6,
        b"x" * 100,
    ):
        put(folder, content)
        assert earlier_run(folder, spec) is None
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")
    assert earlier_run(folder, spec) is None
    with pytest.raises(LlmbenchError, match="a named pipe"):
        read_run(folder)


def test_every_field_of_the_schema_has_limits():
    "A field without limits would take anything: take a kind of llmbench.core.bounds."
    bare = []

    def look(where, node):
        if (
            "$ref" in node
            or "enum" in node
            or "const" in node
            or node.get("type") in ("boolean", "null", "object")
            and "additionalProperties" not in node
        ):
            return
        for key in ("anyOf", "prefixItems"):
            for inner in node.get(key, []):
                look(where, inner)
        kind = node.get("type")
        if (
            kind in ("number", "integer")
            and not {"minimum", "maximum"} <= node.keys()
            or kind == "string"
            and "maxLength" not in node
        ):
            bare.append(where)
        if kind == "array":
            bare.extend([where] if "maxItems" not in node else [])
            look(where, node.get("items", {}))
        if isinstance(node.get("additionalProperties"), dict):
            bare.extend([where] if "maxProperties" not in node else [])
            look(where, node["additionalProperties"])

    schema = json_schema()
    for name, model in {"run": schema, **schema["$defs"]}.items():
        for field, node in model.get("properties", {}).items():
            look(f"{name}.{field}", node)
    assert not bare, bare
    assert (
        len(bounds_table()) == len(BOUNDS)
        and "schema" in json.dumps(schema)
        and RunFile.model_fields
    )


# --- a thousand mutations beside twenty sound runs

ODD = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**53,
    2**63,
    10**15,
    10**30,
    0.0,
    1e-300,
    1e-9,
    0.5,
    1e6,
    1e38,
    1e39,
    1e300,
    -1e300,
    "",
    " ",
    "x",
    "0",
    "-o",
    "../up",
    "a/b",
    ".hidden",
    "a..b",
    "\0",
    "\n",
    "\x1b[0m",
    "‮",
    "<b>",
    "{{< x >}}",
    "' OR 1=1 --",
    "x" * 300,
    "x" * 200_000,
    [],
    [None],
    [1, 1],
    [[]],
    list(range(100)),
    {},
    {"a": 1},
    {"": ""},
    "2999-01-01T00:00:00Z",
    "1999-01-01T00:00:00Z",
    "2026-02-30T00:00:00Z",
]


def places(value, path=()):
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(inner, (*path, key))


def changed(run, path, odd):
    run = json.loads(json.dumps(run))
    node = run
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = odd
    return run


def mutation(seed):
    """Bytes that a run file could have come to: a value replaced, a key lost, doubled or added,
    bytes turned over, cut, repeated.
    """
    chance = random.Random(seed)
    run = MUTATED | {"run_id": f"other.zero.{seed:08x}.1"}
    text = json.dumps(run, separators=(",", ":")).encode()
    kind = seed % 4
    if kind < 2:  # every field comes before chance repeats one
        every = [p for p in places(run) if p and not (isinstance(p[-1], int) and p[-1] > 1)]
        return json.dumps(
            changed(run, every[(seed // 4 * 2 + kind) % len(every)], chance.choice(ODD))
        ).encode()
    at = chance.randrange(len(text))
    if kind == 2:
        return (
            text[:at]
            + bytes(chance.randrange(256) for _ in range(chance.randrange(1, 4)))
            + text[at + chance.randrange(4) :]
        )
    return chance.choice(
        [
            text[:at],
            text + text,
            text[at:],
            text.replace(b":", b"::", 1),
            text.replace(b'"study":', b'"study":"other","study":'),
            text.replace(b"0.", b"0.0.", 1),
            text.replace(b"null", b"NaN", 1),
            b"\xef\xbb\xbf" + text,
            text.decode().encode("utf-16"),
            text.replace(b"[", b"[" * 5000, 1),
            text[:at] + b"\0" + text[at:],
            text.replace(b'"ok"', b'"oom"'),
            text.replace(b"}", b',"more":1}', 1),
        ]
    )


def check_mutations(results, seeds):
    before, none = numbers(results)
    assert not none
    harmless, slowest = set(), 0.0
    for seed in seeds:
        content = mutation(seed)
        put(results / "other" / f"m{seed}", content)
        began = time.monotonic()
        try:
            run = parse_run(content)
            harmless.add(f"results/other/m{seed}/run.json")
            assert orjson.dumps(run) == orjson.dumps(
                run_from(content).model_dump(mode="json", by_alias=True)
            ), seed
        except LlmbenchError as e:
            assert str(e).startswith(("not a run file: ", "not JSON: ")) and len(str(e)) < 1000, (
                seed,
                str(e),
            )
        slowest = max(slowest, time.monotonic() - began)
    began = time.monotonic()
    after, problems = numbers(results)
    assert slowest < 5 and time.monotonic() - began < 5 + len(seeds) / 20
    assert after == before, "the numbers of the others"
    every = {f"results/other/m{seed}/run.json" for seed in seeds}
    assert every - harmless <= set(problems) <= every, "each is named, or is a plausible run"
    return harmless, problems


def filled():
    """A run file with something at every place where any published run, or the example of
    test_hostile_site, has something.
    """
    run = full_run("ddp", 1, "other")
    n = len(run["steps"]["step"])
    run["steps"] |= {"mean_of": [2] * n, "loss_scale": [1.0] * n}
    for file in sorted(PUBLISHED.glob("*/*/run.json")):
        run = first_known(run, json.loads(file.read_bytes()))
    lacking = [name for name, value in run["spec"]["model"].items() if value is None]
    run["spec"]["model"] |= {name: SCALED[name] for name in lacking}
    parse_run(json.dumps(run).encode())
    return run


SCALED = {
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_seq_len": 8192,
    },
}


def first_known(one, other):
    if isinstance(one, dict) and isinstance(other, dict):
        known = {key: first_known(value, other.get(key)) for key, value in one.items()}
        return {key: value for key, value in other.items() if key not in one} | known
    return other if one is None else one


def test_rows_come_of_any_run_that_the_door_lets_in():
    """Two to four facts at a time are missing or odd, in a run file that has them all: a column
    that is there may be used together with one that is not.
    """
    whole, tried = filled(), 0
    every = [p for p in places(whole) if p and not (isinstance(p[-1], int) and p[-1] > 1)]
    for seed in range(5000):
        chance, run = random.Random(seed), whole
        for path in chance.sample(every, chance.choice([2, 2, 3, 4])):
            with contextlib.suppress(KeyError, IndexError, TypeError):  # its parent has gone
                run = changed(run, path, None if chance.random() < 0.7 else chance.choice(ODD))
        try:
            run = parse_run(
                json.dumps(run | {"study": "other", "run_id": f"other.{seed}"}).encode()
            )
        except LlmbenchError:
            continue
        tried += 1
        (row,) = run_rows([run], {})
        assert set(RUN_COLUMNS) <= set(row), seed
    assert tried > 800, "most of them were set aside"


def test_two_hundred_mutations_change_nothing(results):
    harmless, problems = check_mutations(results, range(200))
    assert len(harmless) < 100 and len(problems) > 100


@pytest.mark.slow
def test_a_thousand_mutations_change_nothing(results):
    harmless, problems = check_mutations(results, range(1000))
    assert len(harmless) < 400 and len(problems) > 600
    for verb, words in {
        "report": ["--results", str(results), "--out", str(results.parent / "site")],
        "audit": [str(results)],
    }.items():
        done = subprocess.run(
            [sys.executable, "-m", "llmbench.cli", verb, *words],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=ROOT,
        )
        assert "Traceback" not in done.stderr and done.returncode in (0, 1), (
            verb,
            done.stderr[-2000:],
        )


@pytest.mark.parametrize("what", ["text", "steps", "events"])
def test_fifty_megabytes_are_decided_in_five_seconds(what):
    run = json.loads(TEXT)
    if what == "text":
        run["reason"] = "x" * 50_000_000
    elif what == "steps":
        n = 5_000_000
        run["steps"] = {"step": list(range(n))}
        run["ranks"] = []
    else:
        run["events"] = [{"kind": "warning", "text": "x" * 100}] * 400_000
    content = orjson.dumps(run)
    assert len(content) > 35_000_000
    began = time.process_time()
    with pytest.raises(LlmbenchError, match=r"reason|steps\.step|events"):
        parse_run(content)
    assert time.process_time() - began < 5


def test_a_request_that_no_run_file_could_hold_is_refused_before_it_starts():
    from llmbench.core.errors import RequestError
    from llmbench.spec.resolve import resolve_run

    asked = {
        "model": "gpt-tiny",
        "strategy": "single",
        "world_size": 1,
        "seq_len": 64,
        "batch": {"micro": 2, "accum": 1},
    }
    assert resolve_run(asked | {"optimizer": {"lr": 1e18}}).optimizer.lr == 1e18, (
        "a run that is meant to diverge"
    )
    for wrong in (
        {"optimizer": {"lr": 1e200}},
        {"seed": 2**60},
        {"steps": 2_000_000},
        {"name": "a..b"},
        {"name": "x" * 300},
    ):
        with pytest.raises(RequestError):
            resolve_run(asked | wrong)
