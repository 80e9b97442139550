"""Hosts without hardware: network namespaces with a bridge between them, each with its own name and
hosts file. Root only.

As a program it runs a command beside some hosts, whose cables may be given a rate; in the command
{shell} stands for what is called like ssh, {hosts} for their names, {folder} for a folder that goes
when the command ends, {python} for this interpreter:

  python tests/hosts.py 3 --mbit 1000 -- llmbench launch ssh STUDY --ranks-per-node 1 --submit \\
    -s shell={shell} -s hosts={hosts} -s folder={folder}/runs -s python={python} \\
    -s env.OMP_NUM_THREADS=1
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from namespaces import POSSIBLE, inside, processes

from llmbench.bench.beside.hosts import add_host, add_switch, ip, remove

NETWORK = "10.77.0."


# tmux and systemd would hand a command to a server outside of the namespace
_SHELL = """\
#!/bin/bash
host=$2; shift 2  # called as SHELL -- HOST COMMAND
export TMUX_TMPDIR={folder}/tmux-$host; mkdir -p "$TMUX_TMPDIR"
inside='mount --bind {folder}/hosts-"$0" /etc/hosts; hostname "$0"; exec bash -c "$1"'
exec nsenter --net=/run/netns/{mark}h"${{host#host}}" unshare --mount --uts bash -c "$inside" "$host" "$*"
"""

_RECEIVE = """
import socket, time
peer, _ = socket.create_server(("", {port})).accept()
chunk, got = bytearray(2**20), 0
peer.recv_into(chunk)  # the clock starts when data flow
started = time.perf_counter()
while count := peer.recv_into(chunk):
    got += count
print(got / (time.perf_counter() - started) / 1e9)
"""
_SEND = """
import socket, time
for _ in range(100):
    try:
        peer = socket.create_connection(("host0", {port}))
        break
    except OSError:
        time.sleep(0.1)
for _ in range({mib}):
    peer.sendall(bytes(2**20))
"""


class Hosts:
    """`with Hosts(3, folder) as hosts`: host0, host1, host2, which can reach each other and nothing
    else.

    debian: each host's own name is 127.0.1.1 to itself, as the installer of Debian and Ubuntu
    writes it.
    """

    def __init__(self, count: int, folder: Path, debian: bool = False):
        self.count, self.folder, self.mark, self.debian = (
            count,
            Path(folder),
            f"llb{os.getpid()}",
            debian,
        )
        self.started: list[subprocess.Popen] = []

    def __enter__(self) -> Hosts:
        switch = f"{self.mark}sw"
        add_switch(switch)
        for i in range(self.count):
            add_host(self.namespace(i), switch, f"p{i}", f"{NETWORK}{10 + i}")
        for here in range(self.count):
            addresses = [
                "127.0.1.1" if self.debian and i == here else f"{NETWORK}{10 + i}"
                for i in range(self.count)
            ]
            names = "".join(f"{address} host{i}\n" for i, address in enumerate(addresses))
            (self.folder / f"hosts-host{here}").write_text(f"127.0.0.1 localhost\n{names}")
        return self

    def __exit__(self, *_: object) -> None:
        for i in range(self.count):
            self.kill(i)
        for process in self.started:
            process.wait()
        remove([*map(self.namespace, range(self.count)), f"{self.mark}sw"])

    def namespace(self, i: int) -> str:
        return f"{self.mark}h{i}"

    def start(
        self,
        i: int,
        command: list[str],
        *,
        env: dict[str, str] | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen:
        """Start a command on host i, its stdout and stderr in `log`."""
        enter = inside(self.namespace(i), f"host{i}", self.folder / f"hosts-host{i}")
        with open(log or os.devnull, "wb") as out:
            process = subprocess.Popen(
                [*enter, *command],
                env=os.environ | (env or {}),
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def processes(self, i: int) -> list[int]:
        return processes(self.namespace(i))

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

    def shape(self, mbit_s: int) -> None:
        """Give every cable this rate in each direction: a token bucket where the host sends, and
        one where the switch sends to it.
        """
        bucket = ["root", "tbf", "rate", f"{mbit_s}mbit", "burst", "128kb", "latency", "50ms"]
        for i in range(self.count):
            for place, device in ((self.namespace(i), "eth0"), (f"{self.mark}sw", f"p{i}")):
                subprocess.run(
                    ["tc", "-n", place, "qdisc", "replace", "dev", device, *bucket],
                    check=True,
                    capture_output=True,
                )

    def sent_bytes(self, i: int) -> int:
        """Bytes that host i has put on its cable, headers included."""
        return json.loads(ip("-n", self.namespace(i), "-s", "-j", "link", "show", "eth0"))[0][
            "stats64"
        ]["tx"]["bytes"]

    def shell(self) -> Path:
        """A program that is called like ssh and runs the command on the host that it names."""
        file = self.folder / "into-host"
        file.write_text(_SHELL.format(mark=self.mark, folder=self.folder))
        file.chmod(0o755)
        return file

    def cable(self, i: int, state: str) -> None:
        """Pull (`down`) or plug (`up`) the cable of host i at the switch."""
        ip("-n", f"{self.mark}sw", "link", "set", f"p{i}", state)

    def transfer_gb_s(self, mib: int = 100) -> float:
        """10⁹ bytes a second that one TCP connection carries from host 1 to host 0."""
        programs = _RECEIVE.format(port=29499), _SEND.format(port=29499, mib=mib)
        log = self.folder / "transfer"
        for process in [
            self.start(i, [sys.executable, "-c", program], log=log if i == 0 else None)
            for i, program in enumerate(programs)
        ]:
            process.wait()
        return float(log.read_text())


def main() -> int:
    """Run a command beside hosts; its exit code."""
    parser = argparse.ArgumentParser(
        description=(
            "Run a command beside hosts that are network namespaces; see the head of this file."
        )
    )
    parser.add_argument("count", type=int, help="hosts: host0, host1, …")
    parser.add_argument(
        "--mbit",
        type=int,
        help="10⁶ bits a second of each cable in each direction (default: as fast as it goes)",
    )
    parser.add_argument("command", nargs="+", help="after --")
    asked = parser.parse_args()
    if not POSSIBLE:
        sys.exit("hosts.py: needs root, iproute2 (ip, tc), nsenter and unshare")
    with tempfile.TemporaryDirectory() as folder, Hosts(asked.count, Path(folder)) as hosts:
        if asked.mbit:
            hosts.shape(asked.mbit)
            sys.stderr.write(
                f"hosts.py: cables of {asked.mbit} Mbit/s; one TCP connection carries"
                f" {8000 * hosts.transfer_gb_s():.0f} Mbit/s\n"
            )
        names = ",".join(f"host{i}" for i in range(asked.count))
        said = {
            "{shell}": str(hosts.shell()),
            "{hosts}": names,
            "{folder}": folder,
            "{python}": sys.executable,
        }
        command = asked.command
        for mark, text in said.items():
            command = [word.replace(mark, text) for word in command]
        return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
