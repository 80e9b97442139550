"""`llmbench query` reads the views and nothing else: no file, database, network, extension or
setting, from any way in.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from notebooks import ROOT

from llmbench.core.errors import RequestError
from llmbench.core.records import empty_run, write_run
from llmbench.store.database import open_store, query

NOT_READ = (
    "COPY runs TO '{f}/out.csv'",
    "COPY (SELECT 1) TO '{f}/out.parquet' (FORMAT parquet)",
    "EXPORT DATABASE '{f}/out'",
    "IMPORT DATABASE '{f}'",
    "ATTACH '{f}/out.db'",
    "ATTACH '{f}/results/.llmbench/store.duckdb' AS s",
    "DETACH facts",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{f}/out.duckdb_extension'",
    "SET enable_external_access = true",
    "SET allowed_directories = ['/']",
    "RESET lock_configuration",
    "SET temp_directory = '{f}/out'",
    "PRAGMA enable_profiling",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW runs AS SELECT 1",
    "DELETE FROM facts.runs",
    "INSERT INTO facts.runs SELECT * FROM facts.runs",
    "UPDATE facts.runs SET c0 = 1",
    "DROP TABLE facts.runs",
    "CREATE SECRET (TYPE s3)",
    "CALL enable_logging(storage = 'file', storage_path = '{f}/out')",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "SELECT 1; COPY runs TO '{f}/out.csv'",
    "SELECT 1; SELECT 2",
    "PREPARE p AS SELECT 1",
    "USE facts",
    "SELECT * FROM '{f}/secret.csv'",
    "SELECT * FROM read_csv('{f}/secret.csv')",
    "SELECT * FROM read_text('{f}/secret.csv')",
    "SELECT * FROM read_blob('/etc/hostname')",
    "SELECT * FROM read_json('{f}/results/**/run.json')",
    "SELECT * FROM read_parquet('{f}/*')",
    "SELECT * FROM glob('{f}/*')",
    "SELECT * FROM sniff_csv('{f}/secret.csv')",
    "SELECT * FROM 'http://127.0.0.1:9/x.csv'",
    "SELECT getenv('HOME')",
    "FROM variable_of_python",
    "EXPLAIN ANALYZE COPY runs TO '{f}/out.csv'",
    "WITH a AS (SELECT * FROM read_text('/etc/hostname')) SELECT * FROM a",
    "SELECT * FROM query('SELECT * FROM read_text(''/etc/hostname'')')",
)
READ = (
    "SELECT run_id FROM runs",
    "FROM runs",
    "WITH a AS (FROM runs) SELECT count(*) FROM a",
    "DESCRIBE runs",
    "SUMMARIZE runs",
    "SHOW TABLES",
    "EXPLAIN FROM runs",
    "PIVOT (SELECT study, status FROM runs) ON status USING count(*)",
    "VALUES (1)",
    "SELECT run_id FROM runs; ",
    "-- why\nSELECT 1",
    "SELECT current_date",
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    results = tmp_path / "results"
    for i in range(3):
        write_run(
            results / "s" / f"s.x.{i}",
            empty_run(f"s.x.{i}", {"world_size": 1}, "crash", "x", study="s", attempt=1),
        )
    (tmp_path / "secret.csv").write_text("a\nsecret-word\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def left_in(place: Path) -> set[str]:
    return {str(p.relative_to(place)) for p in place.rglob("*")}


@pytest.mark.parametrize("kept", [False, True])
def test_a_query_reads_views_only(kept, place, monkeypatch):
    """By the function that the command line, notebooks and pages use; with tables in memory and
    with kept ones.
    """
    variable_of_python = [("secret-word",)]  # noqa: F841 (DuckDB would find it by its name)
    if kept:
        monkeypatch.setattr("llmbench.store.cache._SMALL", 1)
        query("results", "FROM runs")
        assert (place / "results/.llmbench/store.duckdb").exists()
    before = left_in(place)
    for sql in NOT_READ:
        with pytest.raises(RequestError) as told:
            query("results", sql.format(f=place))
        assert "\n" not in str(told.value) and "secret-word" not in str(told.value), sql
    for sql in READ:
        query("results", sql)
    assert left_in(place) == before and len(query("results", "FROM runs")[1]) == 3


def test_the_connection_itself_is_closed(place):
    """With the open store, as pages have it, a program can change the tables in memory and reach
    nothing else.
    """
    import duckdb

    before = left_in(place)
    for sql in NOT_READ:
        if sql.startswith("CALL"):  # taken here, and refused when its first line is to be written
            continue
        if sql.startswith(("SET", "RESET", "INSTALL", "LOAD", "CREATE SECRET")) or any(
            word in sql for word in ("'{f}", "/etc/", "http")
        ):
            with pytest.raises(duckdb.Error):
                open_store("results").execute(sql.format(f=place)).fetchall()
    assert left_in(place) == before


def test_a_query_reads_no_variable_of_its_caller(place):
    import duckdb
    import numpy as np

    numbers = np.array([1.0])  # noqa: F841 (DuckDB would find it by its name)
    with pytest.raises(duckdb.Error):
        open_store("results").execute("FROM numbers").fetchall()


def test_a_query_has_no_folder_for_temporary_files(place):
    found = open_store("results").execute("SELECT current_setting('temp_directory')").fetchone()
    assert found == ("",)


def test_the_command_says_so_and_says_no_in_one_line(place):
    def llmbench(*words):
        return subprocess.run(
            [sys.executable, "-m", "llmbench.cli", *words],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            timeout=120,
            check=False,
        )

    done = llmbench("query", "COPY runs TO 'out.csv'", "--results", "results")
    assert (
        done.returncode == 2
        and done.stderr.count("\n") == 1
        and "changes nothing" in done.stderr
        and not Path("out.csv").exists()
    )
    assert "reaches no file" in " ".join(llmbench("query", "--help").stdout.split())


def test_views_that_lie_in_a_results_folder_reach_no_file(place, monkeypatch):
    """The kept tables hold the text of their views; a folder of results comes from other people."""
    import duckdb
    import orjson

    monkeypatch.setattr("llmbench.store.cache._SMALL", 1)
    for path in [place / "results", *(place / "results").rglob("*")]:
        os.utime(path, ns=(10**18, 10**18))  # a file of this moment would be read again
    query("results", "FROM runs")
    with duckdb.connect("results/.llmbench/store.duckdb") as kept:
        text = orjson.loads(
            kept.execute("SELECT value FROM state WHERE name = 'views'").fetchone()[0]
        )
        bad = orjson.dumps(f"COPY (SELECT 1) TO '{place}/out.csv'; {text}")
        kept.execute("UPDATE state SET value = ? WHERE name = 'views'", [bad])
    with pytest.raises(duckdb.Error):
        open_store("results")
    assert not Path("out.csv").exists()


def test_every_query_of_the_pages_reads(place):
    """The SQL of the site and of the README is taken."""
    for file in sorted((ROOT / "reports/_sql").rglob("*.sql")):
        try:
            query("results", file.read_text())
        except RequestError as e:
            assert "changes nothing" not in str(e) and "no files" not in str(e), file
