"""The store of a large folder: kept tables, what makes them new again, and what must not be lost by
keeping them.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmbench.bench.growth import write_runs
from llmbench.core.errors import RequestError
from llmbench.store import cache, ingest
from llmbench.store.database import open_store, query
from llmbench.store.quickcheck import quick_run

ROOT = Path(__file__).resolve().parents[1]
VIEWS = ("runs", "steps", "groups", "ranks", "collectives", "details", "studies", "quarantine")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Sixty files are many here: tables are kept from 20 on, child processes read from the
    first.
    """
    monkeypatch.setattr(cache, "_SMALL", 20)
    monkeypatch.setattr(ingest, "_ALONE", 10**6)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def age(folder: Path) -> None:
    """Put all files into the past: a file of this very moment is read again by rule."""
    for path in [folder, *folder.rglob("*")]:
        if cache.OWN_FOLDER not in path.parts:
            os.utime(path, ns=(10**18 + 1, 10**18 + 1))


@pytest.fixture
def results(tmp_path) -> Path:
    folder = write_runs(tmp_path / "results", 120)
    age(folder)
    return folder


def rows(*folders) -> dict[str, list]:
    """All rows of all views."""
    store = open_store(list(folders))
    found = {view: store.sql(f"SELECT * FROM {view}").fetchall() for view in VIEWS}
    store.close()
    return found


def anew(*folders) -> dict[str, list]:
    """All rows without anything kept."""
    for file in cache.cache_files([f.resolve() for f in folders]):
        file.unlink(missing_ok=True)
    return rows(*folders)


def written(results: Path) -> int | None:
    file = results / ".llmbench" / "store.duckdb"
    return file.stat().st_ino if file.exists() else None


def first(results: Path, number: int = 0) -> Path:
    return sorted(results.glob("*/*/run.json"))[number]


def test_kept_tables_are_the_tables(results):
    made = rows(results)
    at = written(results)
    assert len(made["runs"]) == 120 and at
    assert rows(results) == made and written(results) == at, "nothing changed: nothing is written"
    assert anew(results) == made


def test_children_make_what_one_process_makes(results, monkeypatch):
    alone = rows(results)
    monkeypatch.setattr(ingest, "_ALONE", 50)
    assert anew(results) == alone


def test_without_the_quick_check_the_same(results, monkeypatch):
    quick = rows(results)
    content = first(results).read_bytes()
    quick_run(content)
    monkeypatch.setattr("llmbench.store.results.quick_run", lambda content: None)
    assert anew(results) == quick


def changed_status(results):
    run = json.loads(first(results).read_bytes())
    first(results).write_text(json.dumps(run | {"status": "oom", "reason": "told so"}))


def broken(results):
    first(results, 3).write_bytes(first(results, 3).read_bytes()[:900])


def same_size(results):
    content = first(results, 5).read_bytes()
    first(results, 5).write_bytes(content.replace(b'"loss":[8.4', b'"loss":[9.4'))


def moved_study(results):
    shutil.move(results / "growth-1", results / "growth-9")


def declared(results):
    (results / "growth-0/study.json").write_text(
        '{"study": "growth-0", "baseline": {"strategy": "ddp"}, "title": "T"}'
    )


def a_second_id(results):
    run = json.loads(first(results).read_bytes())
    (results / "zz").mkdir()
    (results / "zz/run.json").write_text(json.dumps(run | {"energy_j": 5.0}))


def back_in_time(results):
    """Another content under the old size and time: the inode tells."""
    file, old = first(results, 7), first(results, 7).stat()
    other = file.with_name("other")
    other.write_bytes(file.read_bytes().replace(b'"loss":[8.4', b'"loss":[7.4'))
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.replace(file)


CHANGES = [
    changed_status,
    broken,
    same_size,
    moved_study,
    declared,
    a_second_id,
    back_in_time,
    lambda r: first(r).unlink(),
    lambda r: shutil.rmtree(r / "growth-1"),
    lambda r: write_runs(r, 130),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(results, change):
    before = rows(results)
    change(results)
    after = rows(results)
    assert after != before and after == anew(results)


def test_what_happens_in_the_same_tick_is_noticed(tmp_path):
    folder = write_runs(tmp_path / "results", 60)
    for status in ("oom", "timeout", "crash"):
        run = json.loads(first(folder).read_bytes())
        first(folder).write_text(json.dumps(run | {"status": status, "reason": "r"}))
        assert query(folder, "SELECT count(*) FROM runs WHERE status = 'ok'")[1] == [(59,)]
        assert query(folder, f"SELECT count(*) FROM runs WHERE status = '{status}'")[1] == [(1,)]


def test_only_the_studies_that_changed_are_read(results, monkeypatch):
    rows(results)
    broken(results)
    parts = []
    monkeypatch.setattr(
        ingest.Deriver,
        "do",
        lambda self, job, do=ingest.Deriver.do: parts.append(len(job["files"])) or do(self, job),
    )
    rows(results)
    assert parts == [50]


def test_prices_and_program_are_part_of_the_key(results, monkeypatch, tmp_path):
    rows(results)
    at = written(results)
    monkeypatch.setattr(cache, "_program", lambda: [("rates.py", 1, 1)])
    rows(results)
    assert written(results) != at
    key = cache.store_key([results])
    prices = tmp_path / "settings.ini"
    prices.write_text("[cost]\nprices = other.yaml\n")
    monkeypatch.chdir(tmp_path)
    assert cache.store_key([results]) != key


def test_several_folders_and_copies(results, tmp_path):
    published = tmp_path / "published"
    shutil.copytree(results / "growth-0", published / "growth-0")
    (first(published)).unlink()
    both = rows(results, published)
    assert both["runs"] == rows(results)["runs"] and both["quarantine"] == []
    first(results).unlink()  # one side has lost one, the other another
    first(results, 1).write_text("{")
    now = rows(results, published)
    assert (
        now == anew(results, published) and len(now["runs"]) == 119 and len(now["quarantine"]) == 1
    )


def test_a_folder_that_cannot_be_written(results, tmp_path):
    made = anew(results)
    shutil.rmtree(results / ".llmbench")
    (results / ".llmbench").write_text("a file is in the way")
    assert rows(results) == made and list((tmp_path / "home/llmbench").glob("store-*.duckdb"))
    shutil.rmtree(tmp_path / "home")
    (tmp_path / "home").write_text("and here")
    assert rows(results) == rows(results) == made


@pytest.mark.parametrize("damage", [lambda f: f.write_bytes(b""), lambda f: f.write_bytes(os.urandom(50_000)),
                                    lambda f: os.truncate(f, f.stat().st_size // 3)])  # fmt: skip
def test_damaged_tables_are_made_again(results, damage):
    made = query(results, "SELECT * FROM runs")
    damage(results / ".llmbench/store.duckdb")
    assert query(results, "SELECT * FROM runs") == made == query(results, "SELECT * FROM runs")


def test_a_reader_keeps_what_it_opened(results):
    store = open_store(results)
    first(results).unlink()
    assert query(results, "SELECT count(*) FROM runs")[1] == [(119,)]
    assert store.sql("SELECT count(*), count(loss_first) FROM runs").fetchone() == (120, 120)


def test_many_at_once(results):
    """Readers and writers in threads and processes: each sees a whole state."""
    seen, program = (
        [],
        (
            "import sys; from llmbench.store.database import query; print(query(sys.argv[1],"
            " 'SELECT count(*) FROM runs')[1][0][0])"
        ),
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, results], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    threads = [
        threading.Thread(
            target=lambda: seen.append(query(results, "SELECT count(*) FROM runs")[1][0][0])
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [120] * 4 and [int(c.communicate(timeout=120)[0]) for c in children] == [120] * 3
    assert [p.name for p in (results / ".llmbench").iterdir() if p.suffix == ".new"] == []


def test_a_user_may_write_beside_the_views(results):
    store = open_store(results)
    store.execute("CREATE TABLE mine AS SELECT strategy FROM runs")
    assert store.sql("SELECT count(*) FROM mine").fetchone() == (120,)


def test_a_wrong_name_is_answered_from_the_views(results):
    with pytest.raises(
        RequestError,
        match="allowed: collectives, details, groups, published, quarantine, ranks, runs, steps, studies",
    ):
        query(results, "SELECT * FROM rums")


def test_a_quick_answer_imports_little(results):
    program = (
        f"import sys; from llmbench.store.database import query; query({str(results)!r}, 'SELECT 1"
        " FROM runs'); print(*sys.modules)"
    )
    open_store(results).close()
    environment = os.environ | {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert not {"numpy", "pydantic", "yaml", "llmbench.analysis.groups"} & set(done.stdout.split())
