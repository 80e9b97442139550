"""The same option has the same name, values and meaning in every verb: the signatures are read."""

import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from notebooks import ROOT

from llmbench.cli import main as cli
from llmbench.cli.verbs import Prose, Results, Style

# Verbs that read or write a folder of results and the name of that option; none is an exception.
READ_RESULTS = """query report publish summary compare explain goodput verify nodes ranks accept winners cost plots baseline history list
    import export follow run sweep launch benchmark backend image fit advise expect""".split()
# `import --format` names a format of files that are read, not of what is printed.
OTHER_FORMAT = {"import": "str"}


def function_of(verb: str):
    module = importlib.import_module(f"llmbench.cli.{cli._VERBS[verb][0]}")
    return getattr(module, verb, None) or getattr(module, f"{verb}_")


def parameters(verb: str) -> dict[str, object]:
    """Annotations of a verb's options by name, those of an options class among them."""
    function = function_of(verb)
    hints = get_type_hints(function, include_extras=True)
    found = {}
    for name in inspect.signature(function).parameters:
        kind = get_args(hints[name])[0] if get_origin(hints[name]) is Annotated else hints[name]
        if dataclasses.is_dataclass(kind):
            found |= get_type_hints(kind, include_extras=True)
        else:
            found[name] = hints[name]
    return found


def values(annotation: object) -> set:
    """The words that an option may have."""
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return set(get_args(plain))


@pytest.mark.parametrize("verb", cli.VERBS)
def test_formats_are_those_of_rows_or_of_sentences(verb):
    asked = parameters(verb).get("format")
    if asked is None or verb in OTHER_FORMAT:
        return
    assert values(asked) in (values(Style), values(Prose)), f"{verb} --format {values(asked)}"


@pytest.mark.parametrize("verb", READ_RESULTS)
def test_a_verb_on_results_names_their_folder_alike(verb):
    asked = parameters(verb)
    assert "results" in asked, f"llmbench {verb} has no --results"
    assert values(asked["results"]) == values(Results)


def test_the_list_of_verbs_on_results_is_whole():
    assert {v for v in cli.VERBS if "results" in parameters(v)} == set(READ_RESULTS)


@pytest.mark.parametrize("verb", ["run", "sweep", "launch", "benchmark"])
def test_what_trains_can_say_first_what_it_would_do(verb):
    assert "dry_run" in parameters(verb)


def typed(*words: str, **environ: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "llmbench.cli", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_version_is_that_of_the_package():
    done = typed("--version")
    pattern = re.search(r'version = "(.+)"', (ROOT / "pyproject.toml").read_text())
    assert done.returncode == 0 and done.stdout.strip() == pattern[1], done


def test_completion_knows_every_verb_and_option():
    """The script that `--install-completion` writes names all verbs, the new ones too."""
    script = cli.build_app().generate_completion(prog_name="llmbench", shell="bash")
    words = set(re.findall(r"[\w-]+", script))
    assert set(cli.VERBS) <= words and {"--dry-run", "--version", "--results"} <= words


def test_nothing_colours_its_output():
    """No module writes a control code itself, so that NO_COLOR has nothing to switch off."""
    found = [
        p.relative_to(ROOT).as_posix()
        for p in (ROOT / "llmbench").rglob("*.py")
        if re.search(r"\\(x1b|033|e)\[[0-9;]*m", p.read_text())
    ]
    assert found == []
    for words in (("--help",), ("list", "strategies"), ("run", "--help"), ("swep",)):
        done = typed(*words)
        assert "\x1b" not in done.stdout + done.stderr
