"""A token in secrets.env is found nowhere: not in results, logs, executed notebooks, manifests or
the site (layers: test_image.py).
"""

import base64
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from notebooks import ROOT

pytestmark = pytest.mark.slow

REQUEST = {
    "study": "secret",
    "model": "gpt-tiny",
    "strategy": "ddp",
    "world_size": 2,
    "hardware": "cpu",
    "seq_len": 64,
    "batch": {"micro": 2, "accum": 1},
    "steps": 4,
    "warmup_steps": 1,
    "collective_steps": 0,
}
STUDY = {
    "study": "secrets",
    "title": "Secrets",
    "base": REQUEST | {"world_size": 1},
    "matrix": [{"strategy": ["single"]}],
    "baseline": {"strategy": "single"},
}

# What the capture of the environment must never become: every variable, whatever it is called.
EVERYTHING = """\
import re
import llmbench.core.hardware

llmbench.core.hardware._PREFIXES, llmbench.core.hardware._SECRET = ("",), re.compile("(?!)")
"""


class Workplace:
    """A folder with a secrets.env as docker/secrets.env.example has it, filled in, and commands
    that are started with it loaded.
    """

    def __init__(self, folder: Path):
        self.folder, self.token, self.said = folder, f"hf_{secrets.token_hex(16)}", ""
        example = (ROOT / "docker/secrets.env.example").read_text()
        names = [line.partition("=")[0] for line in example.splitlines() if line and line[0] != "#"]
        assert {"HF_TOKEN", "REGISTRY_PASSWORD"} <= set(names)
        names += [
            "NCCL_SECRET_KEY",
            "WANDB_API_KEY",
        ]  # what starts like a variable that is kept; what trackers want
        (folder / "secrets.env").write_text("".join(f"{name}={self.token}\n" for name in names))
        (folder / "settings.ini").write_text("")
        for part in ("nbs/runs", "reports"):
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("_site", "published")
            )
        (folder / "run.yaml").write_text(
            yaml.safe_dump({k: v for k, v in REQUEST.items() if k != "study"})
        )
        (folder / "study.yaml").write_text(yaml.safe_dump(STUDY))

    def type(self, *words: str, **variables: str) -> None:
        """A command line in a shell that has loaded the secrets in the documented way; it has to
        end well.
        """
        line = 'set -a; . ./secrets.env; set +a; [ -n "$HF_TOKEN" ] && exec "$@"'
        env = os.environ | {"PYTHONPATH": str(ROOT)} | variables
        command = ["bash", "-c", line, "bash", sys.executable, "-m", "llmbench.cli", *words]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}".replace(
            self.token, "(the token)"
        )
        self.said += done.stdout + done.stderr

    def leaks(self) -> set[str]:
        """Names of files that hold the token, as it is or in base64; `said` for what the commands
        printed.
        """
        needles = self.token.encode(), base64.b64encode(self.token.encode()).rstrip(b"=")[:-1]
        files = [p for p in self.folder.rglob("*") if p.is_file() and p.name != "secrets.env"]
        assert len(files) > 5
        return {p.name for p in files if any(n in p.read_bytes() for n in needles)} | (
            {"said"} if self.token in self.said else set()
        )


def test_a_token_is_in_no_result_log_notebook_manifest_or_page(tmp_path):
    place = Workplace(tmp_path)
    place.type("run", "run.yaml", "--results", "results")
    place.type("sweep", "study.yaml", "--direct", "--results", "results")
    for engine in (["k8s"], ["slurm"], ["docker"], ["ssh", "-s", "hosts=a,b"]):
        place.type(
            "launch",
            engine[0],
            "run.yaml",
            "--nodes",
            "2",
            *engine[1:],
            "--render",
            f"rendered/{engine[0]}",
        )
    place.type("launch", "local", "run.yaml", "--render", "rendered/local")
    place.type("query", "SELECT * FROM runs", "--results", "results")
    place.type("report", "--results", "results", "--out", "site")
    names = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert {
        "run.json",
        "stdout.log",
        "rank-000.jsonl",
        "index.html",
        "compose.yaml",
        "commands.txt",
    } <= names and any(n.endswith(".ipynb") for n in names)
    assert place.leaks() == set()


def test_a_capture_of_the_whole_environment_would_be_noticed(tmp_path):
    """The mutation: with the filter on names taken out, the same search finds the token in the run
    file.
    """
    place = Workplace(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(EVERYTHING)
    place.type(
        "sweep",
        "study.yaml",
        "--direct",
        "--results",
        "results",
        PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}",
    )
    assert "run.json" in place.leaks()
