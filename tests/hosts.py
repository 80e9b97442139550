"""Hosts without hardware: network namespaces with a bridge between them, each with its own name and hosts file. Root only."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

NETWORK = "10.77.0."
POSSIBLE = os.geteuid() == 0 and all(shutil.which(c) for c in ("ip", "nsenter", "unshare"))


def _ip(*words: str, check: bool = True) -> str:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True).stdout


class Hosts:
    """`with Hosts(3, folder) as hosts`: host0, host1, host2, which can reach each other and nothing else."""

    def __init__(self, count: int, folder: Path):
        self.count, self.folder, self.mark = count, Path(folder), f"llb{os.getpid()}"
        self.started: list[subprocess.Popen] = []

    def __enter__(self) -> Hosts:
        switch = f"{self.mark}sw"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for i in range(self.count):
            host = self.namespace(i)
            _ip("netns", "add", host)
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", f"p{i}", "netns", switch)
            _ip("-n", switch, "link", "set", f"p{i}", "master", "br0", "up")
            _ip("-n", host, "addr", "add", f"{NETWORK}{10 + i}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "eth0", "up")
        names = "".join(f"{NETWORK}{10 + i} host{i}\n" for i in range(self.count))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        return self

    def __exit__(self, *_: object) -> None:
        for i in range(self.count):
            self.kill(i)
        for process in self.started:
            process.wait()
        for name in [*map(self.namespace, range(self.count)), f"{self.mark}sw"]:
            _ip("netns", "del", name, check=False)

    def namespace(self, i: int) -> str:
        return f"{self.mark}h{i}"

    def start(self, i: int, command: list[str], *, env: dict[str, str] | None = None, log: Path | None = None) -> subprocess.Popen:
        """Start a command on host i, its stdout and stderr in `log`."""
        inside = f'mount --bind {self.folder}/hosts /etc/hosts; hostname host{i}; exec "$@"'
        enter = ["nsenter", f"--net=/run/netns/{self.namespace(i)}", "unshare", "--mount", "--uts", "bash", "-c", inside, "_"]
        with open(log or os.devnull, "wb") as out:
            process = subprocess.Popen([*enter, *command], env=os.environ | (env or {}), stdout=out, stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def processes(self, i: int) -> list[int]:
        return [int(p) for p in _ip("netns", "pids", self.namespace(i), check=False).split()]

    def signal(self, i: int, number: int) -> None:
        for pid in self.processes(i):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill(self, i: int) -> None:
        """SIGKILL to all of host i, until nothing is left: power off."""
        while self.processes(i):
            self.signal(i, signal.SIGKILL)
            time.sleep(0.02)

    def cable(self, i: int, state: str) -> None:
        """Pull (`down`) or plug (`up`) the cable of host i at the switch."""
        _ip("-n", f"{self.mark}sw", "link", "set", f"p{i}", state)
