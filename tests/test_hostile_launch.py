"""Hostile text in every option and every text of a request: it is refused, or it arrives as one
literal, and nothing of it is executed.
"""

import os
import re
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from notebooks import ROOT

from llmbench.cli.main import main
from llmbench.core.errors import RequestError
from llmbench.frameworks.base import render_backend, shell_text
from llmbench.frameworks.run import BACKENDS
from llmbench.launch.cluster import containers, images, k8s, slurm, ssh
from llmbench.launch.cluster.plan import make_job, read_options, write_plan
from llmbench.launch.command import path_operand, render
from llmbench.launch.sweep.standalone import standalone_python, standalone_shell
from llmbench.spec.request import Data
from llmbench.spec.resolve import resolve_run

REQUEST = {
    "study": "hostile",
    "model": "gpt-tiny",
    "strategy": "ddp",
    "world_size": 2,
    "seq_len": 64,
    "batch": {"micro": 2, "accum": 1},
}
CANARY = "canary"  # the only thing that the values below try to make
HOSTILE = (
    "-oProxyCommand=touch canary",
    "--privileged",
    "-",
    "--",
    "-x",
    "; touch canary",
    "a; touch canary",
    "a && touch canary",
    "a | touch canary",
    "$(touch canary)",
    "`touch canary`",
    "${IFS}touch${IFS}canary",
    "a\ntouch canary",
    "a\rtouch canary",
    "a\n#SBATCH --wrap=touch canary",
    "' ; touch canary ; '",
    '" ; touch canary ; "',
    "'\"; touch canary #",
    "a' 'b",
    "a\\",
    "a\\\ntouch canary",
    "a # b",
    "#",
    "!touch canary",
    "a: b",
    "- a",
    "{a: b}",
    "[a]",
    "*a",
    "&a",
    "!!python/object/apply:os.system [touch canary]",
    "a\n---\nkind: Pod",
    "%n",
    "{handle}",
    "{name}",
    "{0}",
    "$HOME",
    "~root",
    "../../canary",
    "a b",
    "a,b",
    "a=b",
    "a\tb",
    "é",
    "\u202e",
    "\x1b[2J",
    "a\x00b",
    "\ud800",
    "x" * 5000,
    "EOF",
    "END_OF_RANK\ntouch canary",
    "$$",
    "a%b",
    "@file",
    "<(touch canary)",
    ">canary",
    "|| touch canary",
)
TEXTS = tuple(v for v in HOSTILE if "\ud800" not in v)  # what a strict model takes for text
SHELL_BY_DESIGN = {"setup"}  # a line of shell, as its help says; everything else is a name
ENGINES = {
    "ssh": ssh.SshOptions,
    "slurm": slurm.SlurmOptions,
    "k8s": k8s.K8sOptions,
    "docker": containers.ContainerOptions,
}


def holding(value, base=None, **data):
    """A request with the value wherever it may hold free text, past the check that such files
    exist.
    """
    spec = resolve_run(base or REQUEST)
    data = Data(**({"kind": "text", "paths": (value,), "tokenizer": value} | data))
    return spec.model_copy(update={"data": data, "weights": value})


def plan_of(engine, options, spec=None):
    job = make_job(spec or resolve_run(REQUEST), engine, nodes=2)
    if engine == "slurm":
        return slurm.render((job,), options)
    return {"ssh": ssh, "k8s": k8s, "docker": containers}[engine].render(job, options)


def text_options(engine):
    """Names of the options that take text, and a made-up variable."""
    kinds = {f.name: f.type for f in fields(ENGINES[engine])}
    return [
        n for n, kind in kinds.items() if "str" in str(kind) and n not in {"env", *SHELL_BY_DESIGN}
    ] + ["env.LLMBENCH_X"]


def options_of(engine, *given):
    base = (
        ["hosts=left,right"]
        if engine == "ssh" and not any(g.startswith("hosts=") for g in given)
        else []
    )
    return read_options(ENGINES[engine], [*base, *given])


FAKE = """#!/bin/sh
{{ printf '<CALL>\\0'; printf '%s\\0' "$@"; printf '<ENV>\\0'; env -0; }} >>'{log}'
echo 17
"""
TOOLS = (
    "ssh",
    "srun",
    "sbatch",
    "sacct",
    "scontrol",
    "scancel",
    "kubectl",
    "docker",
    "podman",
    "python3",
    "loginctl",
    "systemctl",
    "systemd-run",
    "tmux",
)


class Sandbox:
    """A folder with programs that write down what they are told, and nothing else on the PATH but
    the shell's own.
    """

    def __init__(self, folder: Path):
        self.folder, self.log = folder, folder / "told"
        (folder / "bin").mkdir()
        (folder / "work").mkdir()
        for name in TOOLS:
            program = folder / "bin" / name
            program.write_text(FAKE.format(log=self.log))
            program.chmod(0o755)

    def run(self, words, **variables):
        self.log.unlink(missing_ok=True)
        env = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "SLURM_SUBMIT_DIR": str(self.folder / "work"),
        } | variables
        subprocess.run(
            words,
            cwd=self.folder / "work",
            env=env,
            capture_output=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
        )
        calls = (
            self.log.read_bytes().decode(errors="surrogateescape").split("<CALL>\0")[1:]
            if self.log.exists()
            else []
        )
        told = [call.split("<ENV>\0") for call in calls]
        return [
            {
                "argv": argv.split("\0")[:-1],
                "env": dict(v.split("=", 1) for v in env.split("\0") if "=" in v),
            }
            for argv, env in told
        ]

    def harmed(self):
        return [str(p) for p in self.folder.rglob(f"*{CANARY}*")]


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path)


def accepted(engine, *given):
    """The plan that these options render; None where they are refused in one line."""
    try:
        return plan_of(engine, options_of(engine, *given))
    except RequestError as e:
        assert "\n" not in str(e), e
        return None


@pytest.mark.parametrize(
    "values", [HOSTILE[::6], pytest.param(HOSTILE, marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_hostile_option_is_refused_or_one_literal(engine, values, sandbox):
    """Every text option of every engine × every value. What a grammar lets through is executed with
    programs that write down their arguments.
    """
    refusals, through = 0, set()
    for name in text_options(engine):
        for value in values:
            plan = accepted(engine, f"{name}={value}")
            if plan is None:
                refusals += 1
                continue
            through.add((name, value))
            carry_out(engine, plan, sandbox, name, value)
            assert not sandbox.harmed(), (name, value)
    assert refusals > 0.4 * len(values) * (len(text_options(engine)) - 4), (
        "the grammar of names refuses most of these"
    )
    names = {n for n, v in through if v.startswith("-") and n not in ("env.LLMBENCH_X",)}
    assert not names, f"{names} may begin with a dash"


def carry_out(engine, plan, sandbox, name, value):
    """Write the files of a plan, execute its scripts and commands, and see that the value arrived
    as it is.
    """
    place = sandbox.folder / "work"
    write_plan(plan, place)
    shown = subprocess.run(
        ["bash", "-n", "commands.txt"], cwd=place, capture_output=True, text=True
    )
    assert shown.returncode == 0 or "\x00" in value, (name, value, shown.stderr)
    commands = [*plan.submit, plan.state, *plan.cancel, *plan.cleanup, *plan.fetch]
    told = [
        t
        for words in commands
        for t in sandbox.run(
            [word.replace("{handle}", "17") if words not in plan.submit else word for word in words]
        )
    ]
    scripts = [f for f in plan.files if f.endswith((".sh", ".sbatch"))]
    for script in scripts:
        assert (
            subprocess.run(["bash", "-n", script], cwd=place, capture_output=True).returncode == 0
        ), (name, value)
        told += sandbox.run(["bash", script])
    if name == "env.LLMBENCH_X":
        arrived(engine, plan, told, value)
    for call in told:
        assert "touch" not in call["argv"][:1]


def arrived(engine, plan, told, value):
    if engine == "k8s":
        documents = list(yaml.safe_load_all(next(iter(plan.files.values()))))
        container = documents[-1]["spec"]["template"]["spec"]["containers"][0]
        assert {"name": "LLMBENCH_X", "value": value} in container["env"] and len(documents) == 3
    elif engine == "docker":
        assert any(f"LLMBENCH_X={value}" in call["argv"] for call in told)
        composed = yaml.safe_load(plan.files["compose.yaml"])["services"]["node0"]["environment"]
        assert composed["LLMBENCH_X"] == value.replace("$", "$$"), "compose would expand it"
    else:
        assert any(call["env"].get("LLMBENCH_X") == value for call in told), (engine, value)


@pytest.mark.parametrize(
    "values", [TEXTS[::6], pytest.param(TEXTS, marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_hostile_text_of_a_request_is_one_literal_of_the_parameter_file(engine, values, sandbox):
    """What a request may hold as free text: paths of data, a tokenizer, a folder of weights."""
    for value in values:
        plan = plan_of(engine, options_of(engine), spec=holding(value))
        text = next(t for n, t in plan.files.items() if n.endswith(".yaml") and n != "compose.yaml")
        request = yaml.safe_load(
            list(yaml.safe_load_all(text))[1]["data"]["spec.yaml"] if engine == "k8s" else text
        )
        assert request == plan.jobs[0].spec.model_dump(mode="json") and request["weights"] == value
        carry_out(engine, plan, sandbox, "request", value)
        assert not sandbox.harmed(), value


@pytest.mark.parametrize("key", ["study", "name"])
def test_names_of_a_request_have_a_grammar(key):
    for value in HOSTILE:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", value):
            with pytest.raises(RequestError):
                resolve_run(REQUEST | {key: value})


def test_an_option_of_ssh_is_no_host(tmp_path, capsys, monkeypatch):
    """The reviewer's case, typed: nothing is run, nothing is written."""
    monkeypatch.chdir(tmp_path)
    canary = tmp_path / "pwned"
    words = [
        "launch",
        "ssh",
        str(ROOT / "params/cpu/single.yaml"),
        "--submit",
        "--results",
        str(tmp_path / "r"),
    ]
    assert main([*words, "-s", f"hosts=-oProxyCommand=touch {canary}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "does not begin with '-'" in said and not canary.exists()
    words = [
        "launch",
        "docker",
        str(ROOT / "params/cpu/single.yaml"),
        "--render",
        str(tmp_path / "d"),
        "-s",
        "image=--privileged",
    ]
    assert (
        main(words) == 2
        and "must be [REGISTRY" in capsys.readouterr().err
        and not (tmp_path / "d").exists()
    )


@pytest.mark.parametrize("engine", ["ssh", "docker"])
def test_two_dashes_stand_before_every_operand(engine):
    plan = plan_of(engine, options_of(engine))
    for words in (*plan.submit, plan.state, *plan.cancel, *plan.fetch, *plan.logs, *plan.cleanup):
        text = words[2] if words[:2] == ("bash", "-c") else shlex.join(words)
        assert " -- " in text, text
        bare = re.findall(r"\S+(?<! --) '?(?:left|right)\b", text)
        assert not bare, f"no dashes before a host: {bare}"
    for words in (
        *images.push_words("podman", "a:b", "h/a:b"),
        images.probe_words("docker", "a:b"),
    ):
        assert words[words.index("--") + 1] in ("a:b", "h/a:b"), words


def test_a_rendering_for_another_framework_is_no_program_of_its_values(sandbox):
    """A setting that is not honoured is a comment, `$…` in an argument is text, and a path of data
    is no option of Megatron.
    """
    for value in TEXTS:
        for name, spec in (
            ("deepspeed", holding(value)),
            ("hf", holding(value)),
            (
                "megatron",
                holding(value, REQUEST | {"hardware": "h100"}, kind="megatron", tokenizer=None),
            ),
        ):
            try:
                launch = render_backend(BACKENDS[name], spec, "out", cores=2, python="python3")
            except RequestError:
                assert name == "megatron"
                continue
            script = sandbox.folder / "work" / "run.sh"
            script.write_text(shell_text(launch), newline="")
            assert subprocess.run(["sh", "-n", script], capture_output=True).returncode == 0, (
                name,
                value,
            )
            told = sandbox.run(["sh", str(script)], MEGATRON_PATH="/opt/megatron")
            assert len(told) == 1 and not sandbox.harmed(), (name, value)
            if name == "megatron":
                argv = told[0]["argv"]
                assert argv[argv.index("--data-path") + 1] == value and not value.startswith("-")


def test_a_folder_with_a_quote_is_no_code_of_a_recipe():
    odd = 'x"); __import__("os").system("touch canary"); ("'
    spec = resolve_run(
        REQUEST
        | {
            "model": "llama3.1-8b",
            "hardware": "h100",
            "world_size": 8,
            "strategy": "tp",
            "seq_len": 128,
            "precision": "bf16",
        }
    )
    text = next(
        t
        for n, t in render_backend(BACKENDS["nemo"], spec, odd, python="python3").files.items()
        if n == "recipe.py"
    )
    import ast

    calls = [
        n
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Constant) and n.value == f"{odd}/nemo"
    ]
    assert len(calls) == 1 and "__import__" not in {
        n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)
    }


def test_a_run_as_one_file_holds_its_values_as_literals(sandbox):
    import ast

    for value in TEXTS:
        spec = holding(value)
        held = [
            n.value
            for n in ast.walk(ast.parse(standalone_python(spec, cores=2)))
            if isinstance(n, ast.Constant)
        ]
        assert held.count(value) >= 3, value
        script = sandbox.folder / "work" / "one.sh"
        script.write_text(standalone_shell(spec, cores=2), newline="")
        told = sandbox.run(["sh", str(script), "there"], PYTHON="python3")
        assert len(told) == 1 and not sandbox.harmed(), value
        held = [
            n.value
            for n in ast.walk(ast.parse((sandbox.folder / "work/there/rank.py").read_text()))
            if isinstance(n, ast.Constant)
        ]
        assert held.count(value) >= 3, value
        for left in (sandbox.folder / "work/there").iterdir():
            left.unlink()


def test_a_folder_that_begins_with_a_dash_is_an_operand():
    spec = resolve_run(REQUEST)
    words = render(spec, "-x/run", cores=2).command
    assert words[words.index("--out") + 1] == "./-x/run" and path_operand("x") == "x"
    assert (
        render_backend(BACKENDS["hf"], spec, "-x", cores=2, python="python3").command[-1]
        == "./-x/train.py"
    )


@pytest.mark.slow
def test_what_is_let_through_is_valid_under_strict_schemas():
    validate = pytest.importorskip(
        "kubernetes_validate", reason="pip install 'llmbench[cluster]'"
    ).validate
    given = [f"env.LLMBENCH_X={v}" for v in HOSTILE] + [
        "image=[::1]:5000/a/b:c",
        "gpu=nvidia.com/mig-1g.5gb",
        "tolerate=gpu,nvidia.com/gpu",
        "node_selector=a.b/c=d",
    ]
    for text in given:
        if plan := accepted("k8s", text):
            for document in yaml.safe_load_all(next(iter(plan.files.values()))):
                validate(document, "1.35", strict=True)


def test_the_sandbox_would_notice(sandbox):
    """The programs and the canary are real: the same text without quotes does harm here."""
    assert (
        sandbox.run(["bash", "-c", "ssh left $(touch canary)"])[0]["argv"] == ["left"]
        and sandbox.harmed()
    )
    os.unlink(sandbox.harmed()[0])
