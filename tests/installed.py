"""llmbench as a user has it: its wheel in an environment of its own, outside the clone."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

from notebooks import ROOT

_BUILT_FROM = (
    "pyproject.toml",
    "settings.ini",
    "README.md",
    "LICENSE",
    "llmbench",
    "data/published",
    "data/planner",
    "params",
    "nbs/runs",
    "starter",
)
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "published", "recorded", "_site", "assets")


def _sources(folder: Path) -> Path:
    """A copy of what the wheel is built from, so that a build leaves nothing in the clone."""
    for name in _BUILT_FROM:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, target)
    shutil.copytree(ROOT / "reports", folder / "reports", ignore=_LEFT_OUT)
    return folder


def build_wheel(folder: Path) -> Path:
    """The wheel of this clone, built without a download."""
    wanted = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder / "wheels"]
    command = [sys.executable, "-m", *wanted, _sources(folder / "sources")]
    subprocess.run(command, check=True, capture_output=True)
    return next((folder / "wheels").glob("llmbench-*.whl"))


def _packages_without_llmbench(folder: Path) -> Path:
    """Links to every installed package but llmbench; a folder named by a .pth file runs no
    .pth file itself, so an editable install is not seen.
    """
    folder.mkdir()
    for place in map(Path, site.getsitepackages()):
        for entry in place.iterdir() if place.is_dir() else ():
            if "llmbench" not in entry.name and not os.path.lexists(folder / entry.name):
                (folder / entry.name).symlink_to(entry)
    return folder


def empty_environment(folder: Path) -> Path:
    """An environment that has the packages of this one, but not llmbench; its bin folder."""
    venv.create(folder, with_pip=False)
    packages = _packages_without_llmbench(folder / "packages")
    own = next(folder.glob("lib/python3*/site-packages"))
    (own / "others.pth").write_text(f"{packages}\n")
    return folder / "bin"


def outside(path: Path, **more: str) -> dict[str, str]:
    """The environment variables of a shell that knows nothing of the clone."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"PATH": f"{path}:/usr/bin:/bin", "PIP_NO_INDEX": "1"} | more


def installed(folder: Path) -> Path:
    """The bin folder of an environment with the wheel; the wheel lies in `folder`/wheels."""
    wheel = build_wheel(folder)
    path = empty_environment(folder / "env")
    command = [path / "python", "-m", "pip", "install", "-q", "--no-deps", wheel]
    subprocess.run(command, check=True, capture_output=True, env=outside(path))
    return path
