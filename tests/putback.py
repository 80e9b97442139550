"""Put a fault back into a copy of the package, run the test that guards against it, and see it
fail.

The copy stands first on the path, with one replacement in it and a mark that its module leaves when
it is imported: a failure is the fault's, and not that of another package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = '\n__import__("pathlib").Path(__file__).with_suffix(".imported").touch()\n'
KEPT = shutil.ignore_patterns("*.imported", ".ipynb_checkpoints")


@dataclass(frozen=True)
class Fault:
    """A replacement in one file below llmbench/, the words of pytest that select the test which
    has to fail, and what that test then says.
    """

    file: str
    old: str
    new: str
    test: str
    says: str

    def times(self) -> int:
        """How often the old text stands in the package as it is; it has to stand there once."""
        return (ROOT / "llmbench" / self.file).read_text().count(self.old)


def copied_package(folder: Path) -> Path:
    """A copy of llmbench in `folder`, with what Python compiled of it: only the module that is
    changed is compiled again. Beside it the files of a project, as those of an installed package.
    """
    (folder / "share/llmbench").mkdir(parents=True)
    (folder / "share/llmbench/project").symlink_to(ROOT, target_is_directory=True)
    return Path(shutil.copytree(ROOT / "llmbench", folder / "llmbench", ignore=KEPT))


CELLS = """
import os, sys
from pathlib import Path
from executed import run_cells
from notebooks import read_notebook
path = Path(sys.argv[1])
os.chdir(path.parent)
run_cells(read_notebook(path), slow=False)
"""


def run_tests(folder: Path, test: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A test, or the cells of a notebook, with the package of `folder`, also in every process that
    they start.
    """
    if test.endswith(".ipynb"):
        command = [sys.executable, "-c", CELLS, ROOT / "nbs" / test]
    else:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "--rootdir", ROOT]
        command += ["-c", ROOT / "pyproject.toml", "--basetemp", folder / "basetemp"]
        command += [ROOT / "tests" / test, *words]
    (folder / "here").mkdir()
    own = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        list(map(str, command)),
        cwd=folder / "here",
        env=os.environ | own | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


def check_put_back(folder: Path, name: str, fault: Fault, *words: str) -> str:
    """What the fault's test said, selected by more `words` of pytest; AssertionError unless it
    failed and said what it has to say.
    """
    assert fault.times() == 1, (
        f"llmbench/{fault.file}: the source changed: update the mutation '{name}'"
        f" ({fault.times()} × {fault.old!r})"
    )
    source = copied_package(folder) / fault.file
    marked = MARK if source.suffix == ".py" else ""
    source.write_text(source.read_text().replace(fault.old, fault.new) + marked)
    done = run_tests(folder, fault.test, *words)
    assert not marked or source.with_suffix(".imported").exists(), (
        f"the tests ran with another package\n{done.stdout[-3000:]}"
    )
    assert done.returncode == 1, f"'{name}' was put back and no test failed\n{done.stdout[-3000:]}"
    assert fault.says in done.stdout, (
        f"'{name}': another failure than the fault's\n{done.stdout[-3000:]}"
    )
    return done.stdout
