"""A small Kubernetes API whose pods really run, each on a host of its own made of namespaces. For
tests, as root.

It knows Jobs, Pods, Services, ConfigMaps and Events, expands an Indexed Job, gives pods names only
where a headless Service selects them, makes new pods for failed ones as backoffLimit and
podFailurePolicy say, keeps the volumes of claims, and deletes the pods of a failed Job as the real
controller does. It checks no schema and no rights: those are checked elsewhere. Start it with `with
Kubelet(folder) as cluster`, and use the kubeconfig it writes.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid
from pathlib import Path

from namespaces import inside

from llmbench.bench.beside.hosts import add_host, add_switch, remove

KINDS = {
    "jobs": ("Job", "batch/v1"),
    "pods": ("Pod", "v1"),
    "services": ("Service", "v1"),
    "configmaps": ("ConfigMap", "v1"),
    "events": ("Event", "v1"),
}
INDEX = "batch.kubernetes.io/job-completion-index"
CONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
users: [{{name: test, user: {{}}}}]
current-context: test
"""


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def copy(thing: dict) -> dict:
    return json.loads(json.dumps(thing))


def selected(thing: dict, query: dict[str, str]) -> bool:
    labels = thing["metadata"].get("labels") or {}
    wanted = [w for w in query.get("labelSelector", "").split(",") if w]
    if any(
        labels.get(key) != value if equals else key not in labels
        for key, equals, value in (w.partition("=") for w in wanted)
    ):
        return False
    fields = {
        "metadata.name": thing["metadata"]["name"],
        "involvedObject.name": thing.get("involvedObject", {}).get("name"),
    }
    asked = (w.partition("=") for w in query.get("fieldSelector", "").split(",") if w)
    return all(fields.get(key) == value.lstrip("=") for key, _, value in asked)


class Kubelet:
    """`cut_logs_at`: bytes after which a log ends, as that of a full disk would; with
    `cut_following` only while it is followed, as where the connection breaks. `refused`: words with
    which the creation of a kind is refused. `backoff_s`: between a failed pod and the next one.
    """

    def __init__(self, folder: Path):
        self.folder, self.mark = Path(folder), f"kub{os.getpid()}"
        self.lock, self.things, self.running = threading.RLock(), {}, {}
        self.addresses, self.hosts, self.made_folders, self.cut_logs_at = 10, [], [], None
        self.cut_following, self.refused, self.backoff_s = False, {}, 3.0

    def __enter__(self) -> Kubelet:
        add_switch(self.switch)
        handler = type("Handler", (Handler,), {"cluster": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        (self.folder / "kubeconfig").write_text(CONFIG.format(port=self.server.server_port))
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.stop(name)
        self.server.shutdown()
        remove([*self.hosts, self.switch])
        for folder in self.made_folders:
            folder.rmdir()

    @property
    def switch(self) -> str:
        return f"{self.mark}sw"

    # --- things

    def add(self, kind: str, namespace: str, thing: dict) -> dict:
        name, version = KINDS[kind]
        thing |= {"kind": name, "apiVersion": version}
        thing["metadata"] |= {
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now(),
            "resourceVersion": "1",
        }
        with self.lock:
            self.things[kind, namespace, thing["metadata"]["name"]] = thing
        return thing

    def remove(self, kind: str, namespace: str, name: str) -> None:
        with self.lock:
            thing = self.things.pop((kind, namespace, name), None)
            owned = [
                n
                for (k, s, n), t in self.things.items()
                if thing and k == "pods" and t["metadata"].get("owner") == thing["metadata"]["uid"]
            ]
        if kind == "pods":
            self.stop(name)
        for pod in owned:
            self.remove("pods", namespace, pod)

    def listed(self, kind: str, namespace: str | None, query: dict[str, str]) -> list[dict]:
        with self.lock:
            return [
                copy(t)
                for (k, s, _), t in self.things.items()
                if k == kind and namespace in (None, s) and selected(t, query)
            ]

    # --- jobs and pods

    def run(self, job: dict) -> None:
        spec, namespace = job["spec"], job["metadata"]["namespace"]
        job["status"] = {"startTime": now(), "active": spec["completions"]}
        pods = [self.make(job, i) for i in range(spec["completions"])]
        names = self.names(pods, namespace)
        for pod in pods:
            self.start(pod, names, namespace)
        threading.Thread(target=self.watch, args=(job, pods), daemon=True).start()

    def make(self, job: dict, i: int) -> dict:
        """A new pod of an index of a Job, with an address of its own."""
        template, name = job["spec"]["template"], job["metadata"]["name"]
        pod = {"metadata": copy(template["metadata"]), "spec": copy(template["spec"])}
        pod["metadata"] |= {
            "name": f"{name}-{i}-{uuid.uuid4().hex[:5]}",
            "annotations": {INDEX: str(i)},
            "owner": job["metadata"]["uid"],
        }
        self.addresses += 1
        pod["status"] = {"phase": "Pending", "podIP": f"10.79.0.{self.addresses}"}
        pod["spec"]["hostname"] = f"{name}-{i}"
        return self.add("pods", job["metadata"]["namespace"], pod)

    def replace(self, job: dict, pods: list[dict], i: int) -> None:
        """A new pod in the place of a failed one; every living pod learns its address."""
        namespace = job["metadata"]["namespace"]
        pods[i] = self.make(job, i)
        names = self.names(pods, namespace)
        for pod in pods:
            hosts = self.folder / pod["metadata"]["name"] / "hosts"
            if hosts.exists():  # mounted, so written in place
                hosts.write_text(names)
        self.start(pods[i], names, namespace)

    def evict(self, name: str) -> None:
        """What a drained node does to a pod: the condition, SIGTERM, the grace period, SIGKILL."""
        (pod,) = [t for (k, _, n), t in self.things.items() if k == "pods" and n == name]
        pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
        self.end(self.running[name], pod["spec"]["terminationGracePeriodSeconds"])

    def names(self, pods: list[dict], namespace: str) -> str:
        """The hosts file that DNS would amount to: a pod has a name if a headless Service of its
        subdomain selects it.
        """
        lines = ["127.0.0.1 localhost"]
        for pod in pods:
            host, domain, labels = (
                pod["spec"]["hostname"],
                pod["spec"].get("subdomain"),
                pod["metadata"]["labels"],
            )
            service = self.things.get(("services", namespace, domain), {}).get("spec", {})
            reached = (
                service.get("clusterIP") == "None" and service["selector"].items() <= labels.items()
            )
            full = (
                [f"{host}.{domain}.{namespace}.svc.cluster.local", f"{host}.{domain}", host]
                if reached
                else [pod["metadata"]["name"]]
            )
            lines.append(f"{pod['status']['podIP']} {' '.join(full)}")
        return "\n".join(lines) + "\n"

    def start(self, pod: dict, names: str, namespace: str) -> None:
        name, address, container = (
            pod["metadata"]["name"],
            pod["status"]["podIP"],
            pod["spec"]["containers"][0],
        )
        host, folder = f"{self.mark}p{address.rpartition('.')[2]}", self.folder / name
        folder.mkdir()
        self.hosts.append(host)
        add_host(host, self.switch, host[-12:], address)
        (folder / "hosts").write_text(names)
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", os.getcwd()),
        }
        env |= {"JOB_COMPLETION_INDEX": pod["metadata"]["annotations"][INDEX]} | {
            e["name"]: e["value"] for e in container["env"]
        }
        enter = inside(
            host,
            pod["spec"]["hostname"],
            folder / "hosts",
            *("--pid", "--fork", "--kill-child", "--mount-proc"),
            setup=self.mounts(pod, folder, namespace),
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*enter, *container["command"]],
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[name] = process
        pod["status"] |= {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": container["name"],
                    "ready": True,
                    "state": {"running": {"startedAt": now()}},
                }
            ],
        }

    def mounts(self, pod: dict, folder: Path, namespace: str) -> str:
        """Volumes, except /tmp: the tests' own files lie there."""
        volumes, script = {v["name"]: v for v in pod["spec"]["volumes"]}, ""
        for mount in pod["spec"]["containers"][0]["volumeMounts"]:
            source, volume, target = (
                folder / mount["name"],
                volumes[mount["name"]],
                Path(mount["mountPath"]),
            )
            if "persistentVolumeClaim" in volume:
                source = self.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
            if "hostPath" in volume:
                source = Path(volume["hostPath"]["path"])
            if str(target) == "/tmp":
                continue
            source.mkdir(parents=True, exist_ok=True)
            for key, text in (
                self.things.get(
                    ("configmaps", namespace, volume.get("configMap", {}).get("name")), {}
                )
                .get("data", {})
                .items()
            ):
                (source / key).write_text(text)
            if not target.exists():
                target.mkdir()
                self.made_folders.append(target)
            memory = volume.get("emptyDir", {}).get("medium") == "Memory"
            script += (
                f"mount -t tmpfs tmpfs {target}; "
                if memory
                else f"mount --bind {source} {target}; "
            )
        return script

    def stop(self, name: str, grace_s: float = 10) -> None:
        """SIGTERM to the pod's first process, and SIGKILL to all of it after the grace period, as a
        kubelet does.
        """
        process = self.running.get(name)
        if process and process.poll() is None:
            self.end(process, grace_s)
        self.running.pop(name, None)

    def end(self, process: subprocess.Popen, grace_s: float) -> None:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        try:
            process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def watch(self, job: dict, pods: list[dict]) -> None:
        """The controller of one Job: a failed pod is followed by another while its backoffLimit
        lasts; then the Job fails, and its other pods are deleted.
        """
        spec, ended, due = job["spec"], set(), {}
        deadline, failures, reason = time.monotonic() + spec["activeDeadlineSeconds"], 0, None
        while len(ended) < len(pods) and not reason:
            for i, pod in enumerate(pods):
                if time.monotonic() > due.get(i, deadline):
                    del due[i]
                    self.replace(job, pods, i)
                    continue
                code = self.code_of(pod) if i not in ended and i not in due else None
                if code is None:
                    continue
                pod["status"]["phase"] = "Failed" if code else "Succeeded"
                action = meaning(spec, pod, code) if code else ended.add(i)
                failures += action == "Count"
                if action == "FailJob" or failures > spec["backoffLimit"]:
                    reason = "PodFailurePolicy" if action == "FailJob" else "BackoffLimitExceeded"
                    break
                if action:
                    due[i] = time.monotonic() + self.backoff_s
            if time.monotonic() >= deadline:
                reason = "DeadlineExceeded"
            time.sleep(0.1)
        if reason:
            for pod in pods:
                self.remove("pods", job["metadata"]["namespace"], pod["metadata"]["name"])
        job["status"]["conditions"] = [
            {
                "type": "Failed" if reason else "Complete",
                "status": "True",
                "reason": reason or "CompletionsReached",
            }
        ]

    def code_of(self, pod: dict) -> int | None:
        """The exit code of a pod; None while it runs, 137 when it was deleted."""
        process = self.running.get(pod["metadata"]["name"])
        return process.poll() if process else 137


def meaning(spec: dict, pod: dict, code: int) -> str:
    """What a Job's podFailurePolicy makes of a failed pod: FailJob, Ignore or Count."""
    conditions = pod["status"].get("conditions", [])
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        by_code = code in rule.get("onExitCodes", {}).get("values", [])
        named = [c["type"] for c in rule.get("onPodConditions", [])]
        if by_code or any(c["type"] in named for c in conditions):
            return rule["action"]
    return "Count"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Kubelet

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, thing: dict, code: int = 200) -> None:
        body = json.dumps(thing).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, code: int, reason: str) -> None:
        self.answer(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": reason,
                "message": reason,
                "code": code,
            },
            code,
        )

    def discovery(self, path: str) -> dict | None:
        verbs = ["create", "delete", "get", "list", "patch", "watch"]

        def resources(names: list[str]) -> list[dict]:
            return [
                {
                    "name": n,
                    "singularName": KINDS[n][0].lower(),
                    "namespaced": True,
                    "kind": KINDS[n][0],
                    "verbs": verbs,
                }
                for n in names
            ]

        batch = {"groupVersion": "batch/v1", "version": "v1"}
        core = ["pods", "services", "configmaps", "events"]
        known = {
            "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0-test"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [{"name": "batch", "versions": [batch], "preferredVersion": batch}],
            },
            "/api/v1": {
                "kind": "APIResourceList",
                "groupVersion": "v1",
                "resources": resources(core),
            },
            "/apis/batch/v1": {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": "batch/v1",
                "resources": resources(["jobs"]),
            },
            "/openapi/v3": {
                "paths": {
                    g: {"serverRelativeURL": f"/openapi/v3/{g}"}
                    for g in ("api/v1", "apis/batch/v1")
                }
            },
        }
        return known.get(path) or (
            self.openapi(path.removeprefix("/openapi/v3/"))
            if path.startswith("/openapi/v3/")
            else None
        )

    def openapi(self, group: str) -> dict:
        """kubectl asks whether a patch takes `fieldValidation`, and needs nothing else of the
        schema.
        """
        paths = {}
        for plural, (kind, _version) in KINDS.items():
            if ("batch" in group) == (plural == "jobs"):
                of = {"group": "batch" if plural == "jobs" else "", "version": "v1", "kind": kind}
                patch = {
                    "parameters": [
                        {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
                    ],
                    "responses": {},
                }
                patch |= {"x-kubernetes-action": "patch", "x-kubernetes-group-version-kind": of}
                paths[f"/{group}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": patch}
        return {
            "openapi": "3.0.0",
            "info": {"title": "test", "version": "1"},
            "components": {"schemas": {}},
            "paths": paths,
        }

    def handle_any(self) -> None:
        address = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(address.query))
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        path = address.path.rstrip("/")
        if found := self.discovery(path):
            return self.answer(found)
        match = re.fullmatch(
            r"/(?:api/v1|apis/batch/v1)(?:/namespaces/([^/]+))?/(\w+)(?:/([^/]+))?(?:/(log|status))?",
            path,
        )
        if not match or match[2] not in KINDS:
            return self.refuse(404, "NotFound")
        namespace, kind, name, part = match.groups()
        if self.command == "POST":
            return self.create(kind, namespace, body)
        if not name:
            items = self.cluster.listed(kind, namespace, query)
            title, version = KINDS[kind]
            return self.answer(
                {
                    "kind": f"{title}List",
                    "apiVersion": version,
                    "metadata": {"resourceVersion": "1"},
                    "items": items,
                }
            )
        thing = self.cluster.things.get((kind, namespace, name))
        if thing is None:
            return self.refuse(404, "NotFound")
        if part == "log":
            return self.log(thing, query.get("follow") == "true")
        if self.command == "DELETE":
            self.cluster.remove(kind, namespace, name)
        return self.answer(copy(thing))

    def create(self, kind: str, namespace: str, body: dict) -> None:
        if kind in self.cluster.refused:
            return self.refuse(403, self.cluster.refused[kind])
        if (kind, namespace, body["metadata"]["name"]) in self.cluster.things:
            return self.refuse(409, "AlreadyExists")
        thing = self.cluster.add(kind, namespace, body)
        if kind == "jobs":
            self.cluster.run(thing)
        return self.answer(copy(thing), 201)

    def log(self, pod: dict, follow: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        left = self.cluster.cut_logs_at if follow or not self.cluster.cut_following else None
        with (self.cluster.folder / pod["metadata"]["name"] / "log").open("rb") as log:
            while left is None or left > 0:
                over = (
                    pod["metadata"]["name"] not in self.cluster.running
                    or pod["status"]["phase"] != "Running"
                )
                data = log.read(65536)[:left]
                if data:
                    left = None if left is None else left - len(data)
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                    self.wfile.flush()
                elif over or not follow:
                    break
                else:
                    time.sleep(0.05)
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any
