"""The targets of make for someone who changes a notebook: what `make notebooks` writes is what
`make test` asks for, and outputs are stored where none were or where they are stale.
"""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from executed import run_cells
from notebooks import ROOT, read_notebook
from outputs import COMPUTED, compared, same_line

# Threads of two ranks that wait for each other spin by default: on few cores one holds the core
# that the other needs.
RUN_NOTEBOOKS = ("lab", "test", "test-notebooks")


def commands(target: str) -> str:
    """What make would run for a target."""
    found = subprocess.run(
        ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return found.stdout


@pytest.mark.parametrize("target", RUN_NOTEBOOKS)
def test_threads_that_wait_sleep_wherever_notebooks_run(target):
    assert "OMP_WAIT_POLICY=passive" in commands(target)


def test_make_notebooks_mends_and_formats_before_it_exports():
    """`make test` refuses what ruff would change, in notebooks and in modules."""
    shown = commands("notebooks")
    order = [shown.index(word) for word in ("ruff check --fix", "ruff format", "nbdev-export")]
    assert order == sorted(order)
    assert shown.rindex("ruff format") > shown.index("tests/readme.py")


@pytest.fixture
def notebook(tmp_path):
    """A notebook with a number, a sentence, an assertion and a slow cell, and no stored output."""
    sources = ("6 * 7", "print('two words')", "assert 6 * 7 == 42", "#| slow\n7 * 8")
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"{number:08x}",
            "metadata": {},
            "outputs": [],
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate(sources)
    ]
    path = tmp_path / "10_numbers.ipynb"
    kernel = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}
    made = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(made))
    return path


def stored(path):
    return [bool(cell["outputs"]) for cell in json.loads(path.read_text())["cells"]]


def test_an_output_is_stored_where_none_was_also_a_number(notebook):
    """A number has no words that could differ; it is missing all the same."""
    said = compared(notebook, write=False)
    assert len(said) == 2 and said[0] == "  cell 0: nothing is stored; + 42"
    assert stored(notebook) == [False, False, False, False]
    compared(notebook, write=True)
    assert stored(notebook) == [True, True, False, False]
    assert compared(notebook, write=False) == []
    assert compared(notebook, write=True, slow=True) == ["  cell 3: nothing is stored; + 56"]
    assert stored(notebook) == [True, True, False, True]


def test_another_number_is_no_stale_output(notebook):
    """Times and sizes differ from machine to machine; words do not."""
    compared(notebook, write=True)
    changed = notebook.read_text().replace('"6 * 7"', '"6 * 8"')
    notebook.write_text(changed)
    assert compared(notebook, write=False) == []
    notebook.write_text(changed.replace("print('two words')", "print('more words')"))
    assert compared(notebook, write=False) == ["  cell 1: - two; + more"]


def test_where_files_are_computed_with_another_number_is_stale(notebook):
    """All but the last digits of a float, and what a cell says to vary."""
    room = notebook.parent / COMPUTED[-1]
    room.mkdir()
    moved = notebook.rename(room / notebook.name)
    compared(moved, write=True)
    assert compared(moved, write=False) == []
    changed = moved.read_text().replace('"6 * 7"', '"6 * 8"')
    moved.write_text(changed)
    assert compared(moved, write=False) == ["  cell 0: - 42; + 48"]
    moved.write_text(changed.replace('"6 * 8"', '"#| varies\\n", "6 * 8"'))
    assert compared(moved, write=False) == []
    assert same_line("0.1234567890123 s", "0.1234567890129 s")
    assert not same_line("0.1234567 s", "0.1234577 s") and not same_line("5 GiB", "5 GB")


def test_a_name_that_no_notebook_has_is_no_pass():
    command = [sys.executable, ROOT / "tests/outputs.py", "61_analysis/"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("room", COMPUTED)
def test_the_stored_outputs_are_those_of_the_code(room):
    """A reader of the library's pages sees the stored outputs; each digit is what the code says."""
    command = [sys.executable, ROOT / "tests/outputs.py", f"{room}/"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("cards", [16, 24])
def test_the_guide_by_hand_adds_up_for_other_numbers_of_cards(cards, monkeypatch):
    """It says that its first line can be changed: more hosts have a network, and wait for each
    other.
    """
    monkeypatch.chdir(ROOT / "nbs/guides")
    guide = read_notebook(ROOT / "nbs/guides/70_by_hand.ipynb")
    line = "cards, sequence, sequences = 8, 8192, 128"
    other = f"cards, sequence, sequences = {cards}, 8192, {4 * cards}"
    assert sum(line in cell.source for cell in guide.cells) == 1
    changed = [replace(cell, source=cell.source.replace(line, other)) for cell in guide.cells]
    run_cells(replace(guide, cells=changed), slow=False)
