"""Hosts made of network namespaces behind one switch: what `hosts.py` and `kubelet.py` are built
on. Root only.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from llmbench.bench.beside.hosts import ip

POSSIBLE = os.geteuid() == 0 and all(shutil.which(c) for c in ("ip", "tc", "nsenter", "unshare"))


def processes(host: str) -> list[int]:
    return [int(p) for p in ip("netns", "pids", host, check=False).split()]


def workers(host: str) -> list[int]:
    """The ranks that train on a host, without their agent and the process that samples it."""
    commands = {p: Path(f"/proc/{p}/cmdline").read_bytes() for p in processes(host)}
    return [
        p
        for p, command in commands.items()
        if b"llmbench.train" in command.split(b"\0") and b"torch.distributed.run" not in command
    ]


def inside(host: str, name: str, hosts_file: Path, *options: str, setup: str = "") -> list[str]:
    """The words before a command that run it on a host, with its own name and hosts file.

    options: of unshare, beside the namespaces of mounts and names; setup: shell commands in these
    namespaces before the command.
    """
    script = f'mount --bind {hosts_file} /etc/hosts; hostname {name}; {setup}exec "$@"'
    enter = f"nsenter --net=/run/netns/{host} unshare --mount --uts".split()
    return [*enter, *options, "bash", "-c", script, "_"]
