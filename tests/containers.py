"""What container tests share: the tool, a base image without a registry, a registry on loopback,
and a search through layers.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from waiting import until

TOOL = next((tool for tool in ("podman", "docker") if shutil.which(tool)), None)
BASE = "localhost/python-base:bookworm"
# On a machine behind a mirror: LLMBENCH_IMAGE_WITH='--volume=/etc/pip.conf:/etc/pip.conf:ro …' are
# more words for the build.
MORE = shlex.split(os.environ.get("LLMBENCH_IMAGE_WITH", ""))


def has(image: str) -> bool:
    return (
        TOOL is not None
        and subprocess.run([TOOL, "image", "inspect", image], capture_output=True).returncode == 0
    )


def base_image(folder: Path) -> str:
    """An image with Debian's Python: named by LLMBENCH_IMAGE_BASE, made before, or made now by
    debootstrap; '' takes the Dockerfile's.
    """
    if named := os.environ.get("LLMBENCH_IMAGE_BASE"):
        return named
    if has(BASE) or not (shutil.which("debootstrap") and os.geteuid() == 0):
        return BASE if has(BASE) else ""
    packages = "python3,python3-venv,python3-pip,ca-certificates"
    subprocess.run(
        [
            "debootstrap",
            "--variant=minbase",
            f"--include={packages}",
            "bookworm",
            str(folder / "rootfs"),
        ],
        check=True,
        capture_output=True,
    )
    with subprocess.Popen(
        ["tar", "-C", str(folder / "rootfs"), "-c", "."], stdout=subprocess.PIPE
    ) as tar:
        subprocess.run(
            [TOOL, "import", "-", BASE], stdin=tar.stdout, check=True, capture_output=True
        )
    shutil.rmtree(folder / "rootfs")
    return BASE


def found_in_layers(image: str, *needles: bytes) -> set[bytes]:
    """Which of the needles stand anywhere in what `save` writes of an image: every layer,
    uncompressed, and its description.
    """
    seen, longest, rest = set(), max(map(len, needles)), b""
    with subprocess.Popen(
        [TOOL, "save", image], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as saving:
        while block := saving.stdout.read(1 << 22):
            text = rest + block
            seen |= {n for n in needles if n in text}
            rest = text[-longest:]
    assert saving.returncode == 0
    return seen


PASSWORD = "a-password-of-the-tests"
_HASHED = (  # the same as bcrypt, which is what the registry reads
    "$2b$04$D2Adbox07yrTgLeVoqjlj.GVvbkjGBducXoNd.JM8e4bvE8ZHV4SO"
)


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry of this machine's distribution on loopback, user `tester`; the system chooses the
    port, and its log says which.
    """
    (folder / "htpasswd").write_text(f"tester:{_HASHED}\n")
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {formatter: text}\nstorage: {filesystem: {rootdirectory:"
        f" {folder / 'registry'}}}}}\nhttp: {{addr: '127.0.0.1:0'}}\nauth: {{htpasswd: {{realm:"
        f" llmbench, path: {folder / 'htpasswd'}}}}}\n"
    )
    log = folder / "registry.log"
    with log.open("w") as out:
        started = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        listening = lambda: re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text())
        yield until(listening, 30, process=started, message=log.read_text)[1]
    finally:
        started.terminate()
        started.wait(timeout=20)
