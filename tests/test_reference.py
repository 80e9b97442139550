"""docs/parameters.md and docs/reference.md say what the schema, the views and the glossary say."""

import re

import pytest
from notebooks import ROOT
from reference import CODES, documents, view_columns

from llmbench.spec.request import RunSpec


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
