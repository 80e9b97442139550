"""Published tables as they come in: each bad row is one clear line, the other rows are checked, and
nothing is written.
"""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from llmbench.cli.main import main
from llmbench.store.published.columns import columns_of, row_model
from llmbench.store.published.edition import read_edition
from llmbench.store.published.usable import usable

SHIPPED = Path(__file__).resolve().parents[1] / "data" / "published"
TABLE = "training_throughput.csv"
LINES = (SHIPPED / TABLE).read_bytes().splitlines(keepends=True)
# the rows that corrections by rule are about, and a source whose name is misspelt below
CORRECTED = (b"tinyllama,", b"alcf-aurora-70b,")
FEW = [*LINES[:60], *(row for row in LINES[60:] if row.startswith(CORRECTED))]
HEADER = LINES[0].decode().strip().split(",")
SOUND = {
    "source_id": "tinyllama",
    "model": "TinyLlama 1.1B",
    "hardware": "H100",
    "accelerator": "H100 SXM",
    "n_gpus": "16",
    "dp": "16",
    "framework": "torchtitan",
    "tokens_per_s_per_gpu": "10000",
    "tokens_per_s_total": "160000",
    "row_id": "tinyllama#900",
    "task": "pretrain",
    "outcome": "ok",
    "locator": "README.md:L1",
    "publisher": "tinyllama",
}


def line(**cells) -> bytes:
    """A sound row with some cells changed, as a line."""
    row = dict.fromkeys(HEADER, "") | SOUND | cells
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([row[name] for name in HEADER])
    return text.getvalue().encode()


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(SHIPPED, tmp_path / "published"))


def checked(folder, capsys):
    """Exit code and lines of violations of a folder; nothing in it has changed."""
    before = {p: p.read_bytes() for p in folder.rglob("*")}
    code = main(["published", "check", str(folder)])
    said = capsys.readouterr()
    assert {p: p.read_bytes() for p in folder.rglob("*")} == before and said.err == ""
    counts, _, violations = said.out.partition(" violations\n")
    assert counts.rpartition("\n")[2] == f"{len(violations.splitlines()):,}"
    return code, violations.splitlines()


def test_the_shipped_edition_has_no_violation(folder, capsys):
    assert checked(folder, capsys) == (0, [])


def test_a_sound_row_has_none(folder, capsys):
    (folder / TABLE).write_bytes(b"".join(LINES) + line())
    assert checked(folder, capsys) == (0, [])


BAD = {
    "per node, given as per GPU": (
        line(tokens_per_s_per_gpu="80000"),
        "tinyllama#900: tokens_per_s_per_gpu: 80000 is 8 times tokens_per_s_total / n_gpus",
    ),
    "per node, by the time of a step": (
        line(
            tokens_per_s_per_gpu="80000",
            tokens_per_s_total="",
            global_batch_tokens="1600000",
            step_time_s="10",
        ),
        "tokens_per_s_per_gpu: 80000 is 8 times global_batch_tokens / step_time_s / n_gpus",
    ),
    "sequences of another length": (
        line(seq_len="8192", samples_per_s_total="39.06"),
        "tokens_per_s_per_gpu: 10000 is 0.5 times samples_per_s_total × seq_len / n_gpus = 19998.7; "
        "allowed: an agreement within 2 %; check the unit (per GPU, node or total), and seq_len",
    ),
    "a missing source": (
        line(source_id="tinylama", row_id="tinylama#900"),
        "source_id: 'tinylama' is not in sources.csv; allowed: the names in sources.csv; "
        "write tinyllama",
    ),
    "a GPU that is not in the table": (
        line(accelerator="H100 SMX"),
        "accelerator: 'H100 SMX' is not in accelerators.csv",
    ),
    "no accelerator": (line(accelerator=""), "accelerator: the cell is empty"),
    "a duplicate id": (
        line(row_id="tinyllama#001"),
        f"row_id: 'tinyllama#001' is also in {TABLE}:",
    ),
    "a name of another source": (line(row_id="caraml#900"), "does not name its source"),
    "text where a number belongs": (
        line(dp="sixteen"),
        "dp: 'sixteen' is no whole number; allowed: whole numbers from 1 to 1,000,000 ranks; "
        "write digits",
    ),
    "a unit in a number": (line(dp="16 GPUs"), "dp: '16 GPUs' is no whole number"),
    "a number with a separator": (line(tokens_per_s_total="160,000"), "tokens_per_s_total: "),
    "not a number": (line(mfu_pct="nan"), "mfu_pct: 'nan' is no number"),
    "an infinite number": (line(mfu_pct="1e999"), "mfu_pct: '1e999' is out of range"),
    "a negative number": (line(step_time_s="-1"), "step_time_s: '-1' is out of range"),
    "an MFU above 100": (line(mfu_pct="101"), "mfu_pct: '101' is out of range"),
    "a word that is not in the list": (
        line(outcome="okay"),
        "outcome: 'okay' is no word of its list; allowed: ok, oom, memory_only, not_reported",
    ),
    "no locator": (line(locator=""), "locator: the cell is empty"),
    "nothing measured": (
        line(tokens_per_s_per_gpu="", tokens_per_s_total=""),
        "outcome: ok, and nothing was measured",
    ),
    "a speed without memory": (line(outcome="oom"), "outcome: oom, and tokens_per_s_per_gpu is"),
    "degrees that do not multiply": (
        line(tp="8"),
        "dp: tp × pp × cp × dp is 128, and n_gpus is 16",
    ),
    "faster than the card": (
        line(tflops_per_gpu="2000"),
        "tflops_per_gpu: 2000 TFLOP/s on H100 SXM; allowed: at most 1979",
    ),
    "a derived cell that is no column": (
        line(filled_from_derived="dp seqlen"),
        "filled_from_derived: 'seqlen' is not in columns.csv",
    ),
    "NUL bytes": (line().replace(b"TinyLlama", b"Tiny\0Llama"), "-: row: a NUL byte at byte "),
    "not UTF-8": (line().replace(b"TinyLlama", b"Tiny\xff"), "-: row: byte 14 is not UTF-8"),
    "a cell of 10 MB": (line(precision="x" * 10**7), "bytes; allowed: at most 65,536 bytes"),
    "a long cell": (line(precision="x" * 5000), "precision: 5,000 characters"),
    "a row with more cells than columns": (
        line().replace(b"\n", b",,1\n"),
        f"tinyllama#900: row: {len(HEADER) + 2} cells; allowed: the {len(HEADER)} cells of the",
    ),
    "a row with fewer cells": (b"tinyllama,1\n", "-: row: 2 cells"),
    "an empty line": (b"\n", "-: row: the line is empty"),
    "a quote that is not closed": (b'"' + line(), "-: row: it cannot be split into cells"),
    "a formula": (
        line(precision="=1+1"),
        "precision: '=1+1' begins like a formula; allowed: one line",
    ),
    "a formula behind a blank": (line(precision=" =1+1"), "precision: ' =1+1' is no text"),
    "a control character": (line(precision="a\x1b[31m"), "precision: "),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_row_is_one_line(bad, folder, capsys):
    """Among sound rows, at its own line; the same words wherever it stands."""
    row, words = BAD[bad]
    by_hand = folder / "checked.csv"
    by_hand.write_text(by_hand.read_text().splitlines()[0] + "\n")  # most of its rows are not here
    for place in (1, len(FEW)):
        (folder / TABLE).write_bytes(b"".join([*FEW[:place], row, *FEW[place:]]))
        code, violations = checked(folder, capsys)
        if "is also in" in words and place == 1:
            assert code == 1 and len(violations) == 1, violations
            continue
        assert code == 1 and len(violations) == 1, violations
        assert violations[0].startswith(f"{TABLE}:{place + 1} ") and words in violations[0]
        assert violations[0].isprintable() and violations[0].count("; ") >= 2
        assert len(violations[0]) < 500


def test_all_bad_rows_together_are_one_line_each(folder, capsys):
    """No bad row hides another."""
    rows = [row.replace(b"#900", b"#%d" % (900 + i)) for i, (row, _) in enumerate(BAD.values())]
    (folder / TABLE).write_bytes(b"".join([*LINES, *rows]))
    code, violations = checked(folder, capsys)
    places = [int(text.split(":")[1].split()[0]) for text in violations]
    assert code == 1 and sorted(places) == [len(LINES) + 1 + i for i in range(len(rows))]


def test_a_byte_order_mark_and_carriage_returns_are_one_line_each(folder, capsys):
    content = b"".join(LINES)
    (folder / TABLE).write_bytes(b"\xef\xbb\xbf" + content)
    code, (mark,) = checked(folder, capsys)
    assert code == 1 and mark.startswith(f"{TABLE}:1 -: file: it begins with a byte order mark")
    (folder / TABLE).write_bytes(content.replace(b"\n", b"\r\n"))
    code, (returns,) = checked(folder, capsys)
    assert code == 1 and "1,316 lines end in a carriage return" in returns
    (folder / TABLE).write_bytes(content[:-1])
    code, (cut,) = checked(folder, capsys)
    assert code == 1 and "its last line has no end" in cut


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "header: the line is empty"),
        (b"\0" * 1000, "header: a NUL byte"),
        (b"PK\x03\x04\xff\n", "header: byte 4 is not UTF-8"),
        (b"[" * 10**7, "header: 10,000,000 bytes"),
    ],
)
def test_a_file_that_is_no_table(content, words, folder, capsys):
    (folder / TABLE).write_bytes(content)
    code, violations = checked(folder, capsys)
    assert code == 1 and any(words in text for text in violations)


def test_files_that_cannot_be_read_are_named(folder, capsys):
    (folder / "mlperf_training.csv").unlink()
    with (folder / TABLE).open("wb") as f:
        f.truncate(2**36)
    code = main(["published", "check", str(folder)])
    said = capsys.readouterr().out
    assert code == 1 and f"{TABLE}:0 -: file: cannot be read: larger than 64 MiB" in said
    assert "mlperf_training.csv:0 -: file: cannot be read: No such file" in said


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("both,n_gpus,", "both,gpus,", "n_gpus of training_throughput.csv is missing"),
        ("both,ep,", "both,dp,", "dp is there twice"),
        ("both,dp,integer", "both,dp,whole", "kind: 'whole' is no word of its list"),
        ("8|16|32", "8|many", "row: optimizer_bits: allowed of a number has numbers"),
        ("name,kind", "name,sort", "sort: an unknown column"),
    ],
)
def test_a_broken_dictionary_is_named_and_no_table_is_judged_by_it(old, new, words, folder, capsys):
    text = (folder / "columns.csv").read_text()
    (folder / "columns.csv").write_text(text.replace(old, new, 1))
    code, violations = checked(folder, capsys)
    assert code == 1 and any(words in text for text in violations), violations
    assert all(text.startswith("columns.csv:") for text in violations)
    assert main(["published", "schema", str(folder)]) in (0, 1)


CHECKED = {
    "row_id": "tinyllama#900",
    "columns_checked": "n_gpus dp",
    "columns_not_found": "",
    "differs": "",
    "source_commit_read": "bf122247c4",
    "checked_on": "2026-11-24",
}
FORMULA = {
    "source_id": "glm-130b-log",
    "flops": "model",
    "attention": "full",
    "lm_head": "yes",
    "peak": "bf16",
    "locator": "main.py:L1",
    "reason": "By the code",
}
BAD_EVIDENCE = {
    "a row that is not there": (
        {"row_id": "tinyllama#901"},
        "row_id: 'tinyllama#901' is no row; allowed: the row_id of a measurement",
    ),
    "a row twice": (
        {"row_id": "tinyllama#001", "columns_checked": "n_gpus"},
        "row_id: 'tinyllama#001' is also in line ",
    ),
    "a column that is not there": (
        {"columns_checked": "n_gpu dp"},
        "columns_checked: 'n_gpu' is no column; allowed: columns of training_throughput.csv that "
        "have a value in tinyllama#900; write n_gpus",
    ),
    "a column of the other table": (
        {"columns_not_found": "n_repeats"},
        "columns_not_found: 'n_repeats' is no column",
    ),
    "a column without a value": (
        {"columns_checked": "dp mfu_pct"},
        "columns_checked: mfu_pct is empty in the row",
    ),
    "found and not found": (
        {"columns_not_found": "dp"},
        "columns_not_found: dp is there twice; allowed: each column once",
    ),
    "nothing was checked": ({"columns_checked": ""}, "columns_checked: the cell is empty"),
    "a difference that nothing answers": (
        {"columns_checked": "dp", "differs": "n_gpus=8"},
        "differs: the source prints n_gpus=8, and the row has 16; allowed: a value that a rule of "
        "corrections.csv sets, or a row with a flag; add the rule or the flag",
    ),
    "right and wrong at once": (
        {"differs": "n_gpus=8"},
        "differs: n_gpus is in columns_checked, too",
    ),
    "a difference without a value": ({"differs": "tp"}, "differs: no value after ="),
    "a difference of no column": ({"differs": "gpus=8"}, "differs: 'gpus' is no column"),
    "a day that does not exist": (
        {"checked_on": "2026-02-30"},
        "checked_on: '2026-02-30' is no date; allowed: a day as 2026-11-24",
    ),
    "no commit": ({"source_commit_read": ""}, "source_commit_read: the cell is empty"),
    "a source that is not there": (
        {"source_id": "glm-130b-logs"},
        "source_id: 'glm-130b-logs' matches no source; allowed: names in sources.csv, and *; "
        "write glm-130b-log",
    ),
    "a source with two formulas": (
        {"source_id": "tiny*"},
        "source_id: tinyllama has a formula in line ",
    ),
    "another word for the FLOPs": (
        {"flops": "both"},
        "flops: 'both' is no word of its list; allowed: model, hardware",
    ),
    "another word for the attention": ({"attention": "half"}, "attention: 'half' is no word"),
    "no place": ({"locator": ""}, "locator: the cell is empty"),
}


def evidence(folder, cells) -> tuple[str, int]:
    """Adds a line to the table that has these columns; its file and line."""
    of_row = cells.keys() <= CHECKED.keys()
    file, sound = ("checked.csv", CHECKED) if of_row else ("formulas.csv", FORMULA)
    table = folder / file
    with table.open("a", newline="") as f:
        csv.writer(f, lineterminator="\n").writerow((sound | cells).values())
    return file, len(table.read_text().splitlines())


@pytest.mark.parametrize("bad", BAD_EVIDENCE)
def test_a_wrong_line_of_evidence_is_one_line(bad, folder, capsys):
    (folder / TABLE).write_bytes(b"".join(LINES) + line())
    cells, words = BAD_EVIDENCE[bad]
    file, number = evidence(folder, cells)
    code, (violation,) = checked(folder, capsys)
    assert code == 1 and violation.startswith(f"{file}:{number} ") and words in violation
    assert violation.count("; ") >= 2 and violation.isprintable()


def test_a_sound_line_of_evidence_has_none(folder, capsys):
    (folder / TABLE).write_bytes(b"".join(LINES) + line())
    for cells in ({"row_id": CHECKED["row_id"]}, {"source_id": FORMULA["source_id"]}):
        evidence(folder, cells)
    assert checked(folder, capsys) == (0, [])


def test_a_difference_is_answered_by_a_rule_or_a_flag(folder, capsys):
    """Without the rule that corrects the length, both rows that were found wrong are named."""
    rules = folder / "corrections.csv"
    kept = [text for text in rules.read_text().splitlines(keepends=True) if "0[01]?" not in text]
    rules.write_text("".join(kept))
    code, violations = checked(folder, capsys)
    by_hand = [text for text in violations if text.startswith("checked.csv:")]
    assert code == 1 and len(by_hand) == 2
    assert all("prints seq_len=4096, and the row has 8192" in text for text in by_hand)
    others = [text for text in violations if text not in by_hand]
    assert len(others) == 16 and all(" times samples_per_s_total ×" in text for text in others)
    flagged = (folder / TABLE).read_bytes().splitlines(keepends=True)
    for i, row in enumerate(flagged):
        if b"alcf-aurora-70b#008," in row or b"alcf-aurora-70b#014," in row:
            flagged[i] = row.replace(b",ok,,", b",ok,known_regression,", 1)
    (folder / TABLE).write_bytes(b"".join(flagged))
    assert checked(folder, capsys) == (1, others)


def test_a_table_full_of_violations_ends_soon(folder, capsys):
    (folder / TABLE).write_bytes(LINES[0] + b"\n" * 10**6)
    code = main(["published", "check", str(folder)])
    assert code == 1 and "10,000 are listed; correct these first" in capsys.readouterr().out


def test_a_flag_answers_the_rule_that_it_explains(folder, capsys):
    excuses = ((line(tp="8"), "dp_column_prints_1"), (line(tflops_per_gpu="2000"), "implied_"))
    rates = (line(tokens_per_s_per_gpu="80000"), "tok_s_total_vs_step_ratio=8")
    flagged = [
        row.replace(b"#900", b"#90%d" % i).replace(b",ok,,", b",ok,%s," % flag.encode())
        for i, (row, flag) in enumerate((*excuses, rates))
    ]
    (folder / TABLE).write_bytes(b"".join([*LINES, *flagged]))
    assert checked(folder, capsys) == (0, [])


def test_an_unlisted_flag_drops_a_row(folder):
    odd = line(seq_len="8").replace(b",ok,,", b",ok,seen_in_a_dream,")
    (folder / TABLE).write_bytes(b"".join([*LINES, odd, line(row_id="tinyllama#901", seq_len="8")]))
    edition = read_edition(folder)
    found = usable(edition.tables[TABLE].rows, "time", edition.flags)
    assert edition.violations == [] and len(found.rows) == 1038
    assert found.taken["a flag that is not listed"] == 1


def test_wrong_requests_are_one_line_with_exit_code_2(tmp_path, capsys):
    for words in (["check", str(tmp_path)], ["check", "--table", "mlperf_training"], ["chek"], []):
        code = main(["published", *words])
        said = capsys.readouterr()
        assert (code, said.out, said.err.count("\n")) == (2, "", 1), words


@pytest.mark.parametrize("table", ["training_throughput", "mlperf_training"])
def test_the_schema_is_that_of_the_check(table, capsys):
    """Every column of the table with its limits; each shipped row fits its types."""
    assert main(["published", "schema", "--table", table]) == 0
    schema = json.loads(capsys.readouterr().out)
    edition = read_edition(SHIPPED)
    columns = columns_of(edition.columns, f"{table}.csv")
    assert list(schema["properties"]) == [column.name for column in columns]
    assert schema["required"] == [column.name for column in columns if column.required]
    for row in edition.tables[f"{table}.csv"].rows:
        row_model(columns).model_validate(row.values)


def test_the_edition_is_plain_and_has_no_text_of_a_source():
    """UTF-8, line feeds, no blanks at the ends of cells, and none of the columns with remarks."""
    tables = sorted(SHIPPED.glob("*.csv"))
    assert len(tables) == 11
    for path in tables:
        content = path.read_bytes()
        assert b"\r" not in content and content.endswith(b"\n") and content.isascii(), path.name
        rows = list(csv.reader(content.decode().splitlines()))
        assert all(cell == cell.strip() for row in rows for cell in row), path.name
        assert not {"notes", "note", "derived", "mamf_notes"} & set(rows[0]), path.name
