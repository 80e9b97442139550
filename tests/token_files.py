"""A project whose parameter files name token files that only the machine of the study had."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from notebooks import ROOT


def project_with(folder: Path, prefixes: Iterable[str]) -> Path:
    """A copy of the settings in `folder`, beside empty token files: a request is resolved where
    they exist, and reads them only when it trains.
    """
    shutil.copy(ROOT / "settings.ini", folder)
    for prefix in prefixes:
        for end in (".bin", ".idx"):
            file = folder / f"{prefix}{end}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return folder
