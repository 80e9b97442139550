"""Images: what they install is locked by hash, and a real tool builds, describes, pushes and tries
them.
"""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from containers import MORE, PASSWORD, TOOL, base_image, found_in_layers, has, registry
from notebooks import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from waiting import until

from llmbench.cli.main import main
from llmbench.core.records import read_run
from llmbench.launch.cluster.plan import make_job
from llmbench.spec.resolve import load_run

DOCKER = ROOT / "docker"
GPU = ("build", "gpu")
LOCKS = {"cpu": ("build", "cpu"), "cuda": ("build", "${LOCK}"), "rocm": GPU, "primus": GPU}


def lock(name: str) -> str:
    return (DOCKER / f"requirements.{name}.lock").read_text()


def pins(name: str) -> list[tuple[Requirement, int]]:
    """Each requirement of a lock, and how many hashes it has."""
    text = re.sub(r"^#.*$", "", lock(name), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split("--hash=sha256:") for line in text.splitlines() if line.strip()]
    assert all(re.fullmatch(r"[0-9a-f]{64}", h.strip()) for _, *hashes in lines for h in hashes)
    return [(Requirement(head.strip()), len(hashes)) for head, *hashes in lines]


def here(name: str) -> dict[str, str]:
    """Package and version of a lock as this Python would install it."""
    return {
        r.name: next(iter(r.specifier)).version
        for r, _ in pins(name)
        if r.marker is None or r.marker.evaluate()
    }


@pytest.mark.parametrize("name", ["build", "cpu", "gpu", "nemo"])
def test_locks_pin_everything_by_hash_and_name_no_index(name):
    found = pins(name)
    assert len(found) > 2 and all(
        hashes and [s.operator for s in r.specifier] == ["=="] for r, hashes in found
    )
    assert not re.search(r"://|--(index|extra|find|trusted)|^/|file:", lock(name), re.MULTILINE), (
        "nothing of the machine that wrote it"
    )


def test_locks_hold_what_pyproject_asks_and_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [
        Requirement(text)
        for text in [
            *project["dependencies"],
            *extras["train"],
            *extras["deepspeed"],
            *extras["tokenizer"],
        ]
    ]
    cpu, gpu, build = here("cpu"), here("gpu"), here("build")
    light = {
        "duckdb",
        "altair",
        "vl-convert-python",
        "pypandoc_binary",
        "papermill",
        "ipykernel",
        "orjson",
        "msgspec",
    }
    for r in asked:
        if r.name not in light and r.name != "tqdm":
            assert r.specifier.contains(cpu[r.name]), (
                f"{r} is {cpu[r.name]} in the lock; type make lock"
            )
    assert (
        cpu["torch"].endswith("+cpu")
        and "torch" not in gpu
        and not any(n.startswith("nvidia-c") for n in cpu | gpu)
    ), "torch's GPU builds come with the base"
    assert not light & set(cpu), "the image holds the training half only"
    cards = ("nvidia-ml-py", "torchao")  # their counters, and their products in float8
    assert {n: v for n, v in cpu.items() if n != "torch"} == {
        n: v for n, v in gpu.items() if n not in cards
    } and build.items() <= cpu.items()
    nemo, asked_by_nemo = here("nemo"), (DOCKER / "nemo.txt").read_text().splitlines()
    for r in (Requirement(line) for line in asked_by_nemo if line and line[0] != "#"):
        assert r.specifier.contains(nemo[canonicalize_name(r.name)]), f"{r}: type make lock"
    assert "torch" not in nemo and "nemo-toolkit" in nemo
    (float8,) = map(Requirement, extras["fp8"])
    assert float8.specifier.contains(gpu[float8.name])
    written = {
        Requirement(line).name
        for line in (DOCKER / "requirements.in").read_text().splitlines()
        if line and line[0] not in "#-"
    }
    assert written <= set(cpu) & set(nemo) and {nemo[n] for n in cards} == {gpu[n] for n in cards}


@pytest.mark.parametrize("name", LOCKS)
def test_images_install_nothing_but_by_hash(name):
    text = (DOCKER / f"Dockerfile.{name}").read_text()
    installs = re.findall(r"pip install (.*?)(?:\\?\n)", text)
    assert len(installs) == 3 and all("--no-deps" in words for words in installs)
    assert all(
        "--require-hashes" in words or words.strip().endswith("--no-index /src")
        for words in installs
    )
    assert re.findall(r"/src/requirements\.(\S+?)\.lock", text) == list(LOCKS[name])
    assert "!docker/*.lock" in (ROOT / ".dockerignore").read_text()


@pytest.mark.parametrize("name", LOCKS)
def test_images_are_given_each_file_that_the_package_installs(name):
    """A pattern may name no file; setuptools refuses a name without its file."""
    text = (DOCKER / f"Dockerfile.{name}").read_text()
    lines = re.findall(r"^COPY (.*) /src/", text, re.MULTILINE)
    copied = {word for line in lines for word in line.split()}
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    named = [file for files in tools["data-files"].values() for file in files if "*" not in file]
    shown = (ROOT / ".dockerignore").read_text().splitlines()
    for file in named:
        places = {str(place) for place in (Path(file), *Path(file).parents)}
        assert places & copied, f"{file} is not copied"
        assert {f"!{place}" for place in places} & set(shown), f"{file} is ignored"
    assert "settings.ini" in named


# --- slow: a real tool

needs_tool = pytest.mark.skipif(TOOL is None, reason="needs podman or docker")


def llmbench(*words: str, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "llmbench.cli", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
    )


KILLS = int(os.environ.get("LLMBENCH_KILLS", "2"))
TOKEN = f"hf_{secrets.token_hex(16)}"
SECRETS = {
    "HF_TOKEN": TOKEN,
    "REGISTRY_PASSWORD": f"pw-{TOKEN}",
    "WANDB_API_KEY": f"key-{TOKEN}",
    "NCCL_SECRET_KEY": TOKEN,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The CPU image of the last commit, built by the command in a clone that has a filled-in
    secrets.env, and the clone.
    """
    folder = tmp_path_factory.mktemp("image")
    clone = folder / "llmbench"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    (clone / "docker/secrets.env").write_text("".join(f"{k}={v}\n" for k, v in SECRETS.items()))
    base = base_image(folder)
    done = llmbench(
        "image",
        "build",
        "cpu",
        "--tool",
        TOOL,
        *([f"--base={base}"] if base else []),
        *(f"--with={w}" for w in MORE),
        folder=clone,
        **SECRETS,
    )
    assert done.returncode == 0, done.stderr
    return clone, done.stdout


@pytest.mark.slow
@needs_tool
def test_an_image_is_built_by_hash_and_described(built):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    clone, said = built
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True
    ).stdout.strip()
    assert re.search(
        r"^llmbench:cpu  \d\.\d\d GB  sha256:[0-9a-f]{12}  commit " + commit[:10], said
    ), "name, size, identity, commit"
    text = (clone / "build/images/llmbench-cpu.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    versions = {
        c["name"].lower().replace("_", "-"): c["version"]
        for c in bill["components"]
        if c["purl"].startswith("pkg:pypi/")
    }
    locked = {name.lower().replace("_", "-"): version for name, version in here("cpu").items()}
    assert {n: versions.get(n) for n in locked} == locked and "llmbench" in versions, (
        "the image holds what the lock says"
    )
    assert any(c["purl"].startswith("pkg:deb/") for c in bill["components"])
    again = llmbench("image", "sbom", "cpu", "--tool", TOOL, "--out", str(clone / "again"))
    assert again.returncode == 0 and len(
        json.loads((clone / "again/llmbench-cpu.cdx.json").read_text())["components"]
    ) == len(bill["components"])


@pytest.mark.slow
@needs_tool
def test_an_image_trains_with_the_network_off(built):
    done = llmbench("image", "verify-offline", "cpu", "--tool", TOOL, **SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:-1]] == [
        "yes"
    ] * 6 and "loss" in done.stdout
    assert (
        done.stdout.endswith("it trains offline, unprivileged and read-only\n")
        and TOKEN not in done.stdout + done.stderr
    )


def pid_of(name: str) -> int:
    """The process of a running container on this host; 0 where it does not run."""
    asked = [TOOL, "inspect", "--format", "{{.State.Pid}}", name]
    done = subprocess.run(asked, capture_output=True, text=True)
    return int(done.stdout or 0)


@pytest.mark.slow
@needs_tool
@pytest.mark.skipif(os.geteuid() != 0, reason="ends a container's process from outside: root")
def test_a_container_that_is_killed_continues_from_its_last_checkpoint(built, tmp_path):
    """Killed from outside as the kernel would, again and again: the tool starts it again, it
    continues on the volume, and has each step once and the losses of a run that nobody disturbed.
    """
    volume, asked = tmp_path / "volume", tmp_path / "asked.yaml"
    volume.mkdir()
    asked.write_text(
        "study: killed\nmodel: gpt-tiny\nstrategy: {name: ddp}\nworld_size: 2\nseq_len: 128\n"
        "batch: {micro: 4, accum: 1}\nsteps: 40\nwarmup_steps: 2\ncheckpoint: {every: 5}\n"
        "timeouts: {run_s: 3000}\n"
    )
    options = (
        f"tool={TOOL}",
        "image=localhost/llmbench:cpu",
        f"volume={volume}",
        f"restarts={KILLS + 1}",
    )
    words = [word for option in options for word in ("-s", option)]
    results = tmp_path / "results"
    command = [sys.executable, "-m", "llmbench.cli", "launch", "docker", str(asked), *words]
    command += ["--submit", "--results", str(results)]
    name, steps = make_job(load_run(asked), "docker").name + "-0", volume / "rank-000.jsonl"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        for i in range(KILLS):
            kill_at = 8 + 28 * i // KILLS
            done = lambda at=kill_at: (
                steps.exists()
                and f'"step":{at},' in steps.read_text().rpartition('"kind":"start"')[2]
            )
            until(done, 300, process=process, message=lambda: process.stderr.read())
            os.kill(pid_of(name), signal.SIGKILL)
        said = process.communicate(timeout=600)[1]
    assert process.returncode == 0, said
    (file,) = results.glob("killed/*/run.json")
    run = read_run(file)
    assert run.steps.step == list(range(40)) and run.goodput.starts == KILLS + 1
    alone = llmbench("run", str(asked), "--results", str(tmp_path / "alone"))
    assert alone.returncode == 0, alone.stderr
    (file,) = (tmp_path / "alone").glob("killed/*/run.json")
    assert run.steps.loss == pytest.approx(read_run(file).steps.loss, rel=1e-5)


ASK = 'echo "$HF_TOKEN $(id -u) $(pwd)"; python3 -c "import llmbench"; df -m /dev/shm | tail -1; exit\n'


@pytest.mark.slow
@needs_tool
def test_a_shell_has_the_results_the_secrets_and_the_user(built, tmp_path):
    (tmp_path / "secrets.env").write_text(f"HF_TOKEN={TOKEN}\n")
    words = ("image", "shell", "cpu", "--tool", TOOL, "--secrets", str(tmp_path / "secrets.env"))
    command = [sys.executable, "-m", "llmbench.cli", *words, "--results", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, input=ASK, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, shm = done.stdout.splitlines()
    assert first == f"{TOKEN} {os.geteuid()} /results"
    assert shm.split()[1] == "2048", "a GiB per rank"


@pytest.mark.slow
@needs_tool
@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")
def test_a_shell_in_tmux_outlives_its_terminal(built, tmp_path):
    session, place = f"llmbench-{os.getpid()}", tmp_path / "out"
    words = f"{sys.executable} -m llmbench.cli image shell cpu --tool {TOOL} --tmux {session}"
    terminal = ["script", "-qec", f"{words} --results {place}", "/dev/null"]
    tmux = lambda *more: subprocess.run(["tmux", *more], capture_output=True, text=True)
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(terminal, cwd=ROOT, stdin=subprocess.PIPE, env=environment) as first:
        try:
            until(lambda: tmux("has-session", "-t", session).returncode == 0, 60)
            first.kill()  # the connection is lost
            first.wait()
            tmux("send-keys", "-t", session, "touch /results/here", "Enter")
            until(lambda: (place / "here").exists(), 60)
        finally:
            tmux("kill-session", "-t", session)


STANDIN = """FROM llmbench:cpu
USER 0
ENTRYPOINT []
RUN pip uninstall --quiet --yes llmbench && mkdir -p /workspace/Primus/examples \\
    && echo exit 1 > /workspace/Primus/examples/run_pretrain.sh
"""


@pytest.fixture(scope="module")
def of_cards(built, tmp_path_factory):
    """Builds the image of a card over a stand-in for its base: torch, in its CPU build, Python, pip
    and a file where Primus has its script. Every layer above the base is real.
    """
    folder, standin = tmp_path_factory.mktemp("standin"), "localhost/llmbench-standin:cards"
    (folder / "Dockerfile").write_text(STANDIN)
    words = [TOOL, "build", *MORE, "--tag", standin, str(folder)]
    subprocess.run(words, check=True, capture_output=True)

    def build(platform: str) -> str:
        given = ("--tool", TOOL, f"--base={standin}", *(f"--with={w}" for w in MORE))
        done = llmbench("image", "build", platform, *given, folder=built[0])
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield build
    images = ["llmbench:nemo", "llmbench:primus", standin]
    subprocess.run([TOOL, "image", "rm", "--force", *images], capture_output=True)


@pytest.mark.slow
@needs_tool
@pytest.mark.parametrize("platform", ["nemo", "primus"])
def test_an_image_with_a_framework_trains_by_itself_too(platform, of_cards):
    assert of_cards(platform).startswith(f"llmbench:{platform}  ")
    words = ("image", "verify-offline", platform, "--tool", TOOL, "--hardware", "cpu")
    done = llmbench(*words, "--ranks", "2", **SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it trains offline, unprivileged and read-only" in done.stdout


OFFLINE = ("--network", "none", "--read-only", "--tmpfs", "/tmp", "--tmpfs", "/results:mode=1777")


@pytest.mark.slow
@needs_tool
def test_nemo_trains_in_its_image_without_a_network(of_cards):
    """On two CPU ranks, as user 1000, and its run has a loss for each step."""
    of_cards("nemo")
    inside = "python3 -m llmbench.cli backend nemo /app/params/cpu/ddp.yaml --results /results"
    inside += " -o steps=6 -o warmup_steps=1; cat /results/*/*/run.json"
    words = [TOOL, "run", "--rm", *OFFLINE, "--entrypoint", "bash", "llmbench:nemo", "-c", inside]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    run = json.loads(done.stdout[done.stdout.index("\n{") :])
    assert run["status"] == "ok" and len(run["steps"]["loss"]) == 6, done.stdout + done.stderr


@pytest.mark.slow
@needs_tool
def test_a_base_without_primus_is_refused_with_what_to_type(of_cards, built):
    given = ("--tool", TOOL, "--base=llmbench:cpu", *(f"--with={w}" for w in MORE))
    done = llmbench("image", "build", "primus", *given, folder=built[0])
    assert done.returncode == 1 and "PRIMUS_PATH" in done.stderr, done.stderr


@pytest.mark.slow
@needs_tool
def test_an_image_that_cannot_train_is_told(built, tmp_path):
    """A variable that looks like a secret, and no llmbench in it: both are named, and the exit code
    is 1.
    """
    text = (
        "FROM llmbench:cpu\nENV MY_TOKEN=x\nUSER 0\nRUN rm -r"
        " /opt/venv/lib/python3*/site-packages/llmbench\nUSER 1000:1000\n"
    )
    (tmp_path / "Dockerfile").write_text(text)
    subprocess.run(
        [TOOL, "build", "--tag", "llmbench-broken:cpu", str(tmp_path)],
        check=True,
        capture_output=True,
    )
    try:
        done = llmbench(
            "image", "verify-offline", "cpu", "--tool", TOOL, "--image", "llmbench-broken:cpu"
        )
    finally:
        subprocess.run([TOOL, "image", "rm", "--force", "llmbench-broken:cpu"], capture_output=True)
    assert (
        done.returncode == 1
        and "failed: no secrets, trains" in done.stdout
        and "No module named" in done.stdout
    ), done.stdout + done.stderr


@pytest.mark.slow
@needs_tool
def test_no_layer_and_no_file_of_a_build_holds_a_secret(built):
    clone, said = built
    code = (ROOT / "llmbench/entrypoint.py").read_bytes()[:100]
    label = b"org.opencontainers.image.revision"
    assert found_in_layers("llmbench:cpu", TOKEN.encode(), code, label) == {
        code,
        label,
    }, "it reads files and labels, and no token is in them"
    written = [p for p in (clone / "build").rglob("*") if p.is_file()]
    assert (
        len(written) >= 2
        and not any(TOKEN in p.read_text(errors="replace") for p in written)
        and TOKEN not in said
    )


@pytest.mark.slow
@needs_tool
def test_a_layer_that_holds_a_secret_is_found(built, tmp_path):
    """The search itself: a secrets.env that the build took along is seen, though a later layer
    removes it.
    """
    (tmp_path / "secrets.env").write_text(f"HF_TOKEN={TOKEN}\n")
    (tmp_path / "Dockerfile").write_text(
        "FROM scratch\nCOPY secrets.env /secrets.env\nCOPY Dockerfile /secrets.env\n"
    )
    subprocess.run(
        [TOOL, "build", "--tag", "llmbench-leaky:cpu", str(tmp_path)],
        check=True,
        capture_output=True,
    )
    try:
        assert found_in_layers("llmbench-leaky:cpu", TOKEN.encode()) == {TOKEN.encode()}
    finally:
        subprocess.run([TOOL, "image", "rm", "--force", "llmbench-leaky:cpu"], capture_output=True)


@pytest.mark.slow
@needs_tool
@pytest.mark.skipif(
    not shutil.which("docker-registry"), reason="needs docker-registry (Debian's package)"
)
def test_push_to_a_real_registry(tmp_path):
    """Signed in with a password that is given by name; what comes back under the digest is what was
    sent.
    """
    (tmp_path / "hello").write_text("hello\n")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY hello /hello\n")
    image = "llmbench-push-test:cpu"
    subprocess.run([TOOL, "build", "--tag", image, str(tmp_path)], check=True, capture_output=True)
    user = {"REGISTRY_USER": "tester", "REGISTRY_PASSWORD": PASSWORD}
    pushed = []
    try:
        with registry(tmp_path) as host:
            words = (
                "image",
                "push",
                "cpu",
                "--tool",
                TOOL,
                "--image",
                image,
                "--registry",
                f"{host}/team",
            )
            refused = llmbench(*words, **user | {"REGISTRY_PASSWORD": "not-the-password"})
            assert (
                refused.returncode == 1
                and re.search("unauthorized|authentication|invalid", refused.stderr)
                and "not-the-password" not in refused.stderr
            )
            done = llmbench(*words, **user)
            assert done.returncode == 0, done.stderr
            name = done.stdout.strip()
            pushed = [f"{host}/team/{image}", name]
            assert (
                re.fullmatch(rf"{host}/team/llmbench-push-test@sha256:[0-9a-f]{{64}}", name)
                and PASSWORD not in done.stdout + done.stderr
            )
            stored = (
                tmp_path
                / "registry/docker/registry/v2/repositories/team/llmbench-push-test/_manifests/tags/cpu/current/link"
            )
            assert stored.read_text() == name.partition("@")[2]
        gone = llmbench(*words, **user)
        assert gone.returncode == 1 and "refused" in gone.stderr
    finally:
        subprocess.run([TOOL, "image", "rm", "--force", *pushed, image], capture_output=True)


def test_without_a_tool_every_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    (tmp_path / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for action in ("build", "sbom", "push", "verify-offline"):
        assert main(["image", action, "cpu"]) == 2
        said = capsys.readouterr()
        assert "apt-get install podman" in said.err and said.out == ""


@pytest.mark.slow
@needs_tool
def test_an_image_that_is_not_here_is_told(tmp_path):
    for words in (["sbom"], ["push", "--registry", "127.0.0.1:1/x"], ["verify-offline"]):
        done = llmbench("image", words[0], "rocm", *words[1:], "--tool", TOOL)
        assert done.returncode == 2 and "llmbench image build rocm" in done.stderr
    assert not has("llmbench:rocm")
