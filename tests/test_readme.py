"""The README as a newcomer types it: on a fresh clone, line by line, with what is in it and nothing
else.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from notebooks import ROOT

FENCE = re.compile(r"```bash\n(.*?)```", re.DOTALL)


def commands(text: str) -> list[list[str]]:
    "The lines of each block of shell commands."
    return [
        [line for line in block.splitlines() if line and not line.startswith("#")]
        for block in FENCE.findall(text)
    ]


BLOCKS = commands((ROOT / "README.md").read_text())
STUDY, LAB, OWN, LONGER = BLOCKS


def test_the_readme_has_the_blocks_that_are_typed():
    assert STUDY[-1].startswith("make study") and LAB[0].startswith("make lab")
    assert OWN[0].startswith(". .venv/bin/activate") and len(OWN) >= 12 and len(LONGER) >= 5


def test_every_file_that_the_readme_names_is_there():
    words = {
        word
        for block in (OWN, LONGER)
        for line in block
        for word in shlex.split(line, comments=True)
    }
    named = {w for w in words if re.fullmatch(r"(params|nbs|tests|reports)/[\w./-]+", w)}
    assert len(named) >= 6 and not [w for w in sorted(named) if not (ROOT / w).exists()]


def typed(
    line: str, folder: Path, environ: dict[str, str], limit_s: float = 900
) -> subprocess.CompletedProcess:
    "A line in a shell of its own, in the clone, its environment made active as the README says."
    script = f". .venv/bin/activate\n{line}"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone of what is committed, set up by its own Makefile; the packages come from where pip is
    told to look.
    """
    folder = tmp_path_factory.mktemp("newcomer") / "llmbench"
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("LLMBENCH", "VIRTUAL_ENV", "COV", "PYTEST"))
    }
    kept["PATH"] = os.pathsep.join(p for p in kept["PATH"].split(os.pathsep) if ".venv" not in p)
    made = subprocess.run(
        ["bash", "-c", STUDY[-1]],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=2400,
    )
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    assert (folder / "reports/_site/index.html").is_file() and "Building the site" in made.stdout
    return folder, kept


@pytest.mark.slow
def test_a_newcomer_types_the_readme(clone):
    folder, environ = clone
    ended = {}
    for line in OWN[1:]:
        done = typed(line, folder, environ)
        ended[line] = done
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stdout + done.stderr, line
    run = next(done.stdout for line, done in ended.items() if line.startswith("llmbench run"))
    assert "tokens/s" in run and "→" in run, "a run ends with a speed and its losses"
    compared = next(
        done.stdout for line, done in ended.items() if line.startswith("llmbench compare")
    )
    assert "zero2" in compared.splitlines()[0] and "comparable: yes" in compared.splitlines()[0]
    page = (folder / "reports/_site/index.html").read_text()
    assert "cpu-fit" not in re.sub(r"<[^>]+>", " ", page).split("outside a study")[0], (
        "trials of fit have no section on the first page"
    )


@pytest.mark.slow
def test_the_longer_commands_are_sound_requests(clone):
    """What takes minutes or a GPU: each file resolves; the frameworks' and GPUs' lines run or say
    in one line what is missing.
    """
    folder, environ = clone
    for line in LONGER:
        words = shlex.split(line, comments=True)
        if words[1] in ("sweep", "run"):
            shown = typed(f"llmbench show {words[2]}", folder, environ)
            assert shown.returncode == 0 and shown.stdout, line
        elif words[1] == "backend" and shutil.which("nvidia-smi") is None:
            done = typed(line, folder, environ)
            said = done.stdout + done.stderr
            says = re.search("pip install|make nemo-env", said)
            assert "Traceback" not in said and (done.returncode == 0 or says), line
        elif words[1] == "benchmark" and shutil.which("nvidia-smi") is None:
            done = typed(f"{line.split('#')[0]} --direct", folder, environ)
            assert (
                done.returncode == 1
                and "refused" in done.stdout
                and re.search(r"\b(type|write|install):? ", done.stdout)
            ), done.stdout + done.stderr
    quick = typed(LONGER[0], folder, environ)
    assert quick.returncode == 0 or "type -o precision=fp32" in quick.stdout, (
        "bf16 trains, or says before it starts that it would take too long"
    )
