"""docs/parameters.md and docs/reference.md say what the schema, the views and the glossary say."""

import re

import pytest
from notebooks import ROOT
from reference import CODES, documents, view_columns

from llmbench.cli.reading import _SQL
from llmbench.core.errors import UNSURE
from llmbench.spec.request import RunSpec
from llmbench.store.database import PUBLISHED, VIEW_NAMES


@pytest.mark.parametrize("name", ["parameters.md", "reference.md"])
def test_a_reference_is_fresh(name):
    path = ROOT / "docs" / name
    assert path.read_text() == documents()[path], "type make notebooks"


def test_the_reference_has_every_key_and_column_once():
    keys = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs/parameters.md").read_text(), re.M)
    assert len(keys) == len(set(keys)) + len({"study"}), "study is a key of both kinds of file"
    assert set(RunSpec.model_fields) <= {key.partition(".")[0] for key in keys}
    text = (ROOT / "docs/reference.md").read_text()
    runs = [column for column, _ in view_columns()["runs"]]
    part = text.partition("### runs\n")[2].partition("\n### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", part, re.M) == runs and len(runs) > 40
    assert sorted(CODES) == [0, 1, 2, 3, 75]


def test_every_verb_that_ends_with_3_is_in_the_table_of_exit_codes():
    """The one constant is used by the modules of these verbs."""
    using = {
        path.parent.name
        for path in (ROOT / "llmbench").rglob("*.py")
        if re.search(r"\bUNSURE\b", path.read_text()) and path.name != "errors.py"
    }
    assert using == {"accepted", "bisected", "verified", "compare"}
    for verb in ("accept", "bisect", "verify", "compare"):
        assert verb in CODES[UNSURE]


def test_every_view_is_named_where_one_looks_for_views():
    views = set(view_columns())
    assert views == {*VIEW_NAMES, PUBLISHED}
    assert all(view in _SQL for view in views), "llmbench query --help"
