"""A strategy is a row and a notebook: one is added to a copy of the project, and every room knows
it; predictions follow from the row.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from notebooks import ROOT

from llmbench.spec.strategies import STRATEGY_TABLE

ROW = """    StrategyRow(
        "zz-ddp", "replicas, gradients all-reduced in buckets of 1 MiB",
        "zz_ddp", "#2255aa", like="ddp", fixed={"bucket_mib": 1},
    ),
    StrategyRow(
        "shards", "all sharded, gradients reduced by blocks",
        "fsdp", "#225599", shards="pgo", settings=_SHARDED_SETTINGS, reduction="blocks",
    ),
    StrategyRow(
        "stage-one", "optimizer state sharded by an engine",
        "zero", "#225566", shards="o", settings=_ZERO, **_ENGINE,
    ),
"""
BUILD = """#| export
from llmbench.model.decoder import Decoder
from llmbench.spec.request import RunSpec
from llmbench.train.mesh import Ranks
from llmbench.train.strategies import ddp


def build(model: Decoder, spec: RunSpec, ranks: Ranks) -> ddp.DDP:
    "DDP with the buckets that the row fixes."
    return ddp.build(model, spec, ranks)
"""
# Modules besides the table and the builders that name a strategy, and why. Entries may only
# disappear: what depends on a strategy depends on a fact of its row.
NAMES_A_STRATEGY = {
    "bench/beside/ends.py": "the trainings that are ended on purpose",
    "bench/beside/link_steps.py": "the trainings over a slow link",
    "bench/causes.py": "the requests that causes are planted in",
    "bench/growth.py": "the requests whose growth is measured",
    "bench/interrupted.py": "the trainings that are ended at random",
    "compare/calibrate.py": "the default of an option",
    "report/advice/claims.py": "the advice of others, in their words",
    "frameworks/bridge.py": "a section and a value of Megatron Bridge",
    "frameworks/scripts.py": "an argument of transformers",
    "frameworks/strategies.py": "the counterparts in other frameworks, by strategy",
    "plan/examples.py": "the runs of a demo study",
    "spec/layout_rules.py": "a change that a refusal offers",
}
DEGREES = {name for name, row in STRATEGY_TABLE.items() if row.own_degree == name}


def _cell(number: int, source: str) -> dict:
    lines = source.splitlines(keepends=True)
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"{number:08x}",
        "metadata": {},
        "outputs": [],
        "source": lines,
    }


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of the project with one row and one notebook more, exported."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("nbs", "llmbench", "params"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "settings.ini", "README.md"):
        shutil.copyfile(ROOT / name, folder / name)
    table = folder / "nbs/15_spec/22_strategies.ipynb"
    notebook = json.loads(table.read_text())
    cell = next(c for c in notebook["cells"] if "_REPLICAS = (\n" in "".join(c["source"]))
    cell["source"] = "".join(cell["source"]).replace("_REPLICAS = (\n", "_REPLICAS = (\n" + ROW)
    table.write_text(json.dumps(notebook))
    cells = [_cell(1, "#| default_exp train.strategies.zz_ddp"), _cell(2, BUILD)]
    added = folder / "nbs/30_train/strategies/60_zz_ddp.ipynb"
    added.write_text(json.dumps(notebook | {"cells": cells}))
    export = "import sys; from nbdev.export import nb_export; [nb_export(f) for f in sys.argv[1:]]"
    command = [sys.executable, "-c", export, table, added]  # the two that changed: a third of all
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def typed(project: Path, *words: str) -> str:
    """What the command prints in the copy; its exit code is 0."""
    environ = os.environ | {"PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "llmbench.cli", *words]
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def printed(project: Path, program: str) -> str:
    """What a program prints that imports the copy."""
    environ = os.environ | {"PYTHONPATH": str(project)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(project: Path, strategy: str) -> list[float]:
    """Of a short run; its run file has the settings that a row fixes."""
    small = (
        "steps=4 warmup_steps=1 collective_steps=0 seq_len=32 batch.micro=1 batch.global_tokens=64"
    )
    settings = [*small.split(), f"strategy={strategy}", f"study={strategy}"]
    options = [word for setting in settings for word in ("-o", setting)]
    typed(project, "run", "params/cpu/ddp.yaml", *options, "--results", "out")
    run = json.loads(next((project / "out" / strategy).rglob("run.json")).read_text())
    assert run["status"] == "ok" and run["spec"]["strategy"]["name"] == strategy
    assert run["spec"]["strategy"]["bucket_mib"] == (1 if strategy == "zz-ddp" else 25)
    return run["steps"]["loss"]


@pytest.mark.slow  # in the quick set guide 45_strategy trains what it added beside DDP
def test_an_added_strategy_trains_as_ddp_does(project):
    """Its run file has the setting that its row fixes."""
    assert losses(project, "zz-ddp") == losses(project, "ddp")


def test_one_row_and_one_notebook_make_a_strategy(project):
    """Show, doctor, other frameworks, the prediction and the colours know it."""
    assert not {"zz-ddp", "shards", "stage-one"} & set(STRATEGY_TABLE), "names of the test alone"
    for other in ("hf", "deepspeed", "lightning"):
        typed(project, "backend", other, "params/cpu/ddp.yaml", "--render", f"rendered/{other}")
    shown = typed(project, "show", "params/cpu/ddp.yaml", "-o", "strategy=zz-ddp")
    assert "zz-ddp" in shown and "memory" in shown
    assert "zz-ddp" in typed(project, "doctor")
    asked = (
        "from llmbench.report.charts import STRATEGY_COLOURS as c; "
        "from llmbench.plan.memory import memory_per_rank as m; "
        "from llmbench.spec.presets import preset; p = preset('gpt-tiny'); "
        "same = m(p, 'ddp', 2, micro=1, seq_len=64) == m(p, 'zz-ddp', 2, micro=1, seq_len=64); "
        "print(c['zz-ddp'], same)"
    )
    assert printed(project, asked).split() == ["#2255aa", "True"]


def test_a_row_fixes_a_setting(project):
    """The request has the value without asking for it, another one is refused with the only one
    that is allowed, and the predicted calls are those of the value.
    """
    asked = """
from llmbench.core.errors import RequestError
from llmbench.plan.traffic import predicted_collectives
from llmbench.spec.presets import preset
from llmbench.spec.resolve import resolve_run

def strategy(**given):
    return {"name": "zz-ddp"} | given

def resolved(given):
    rest = {"model": "gpt-tiny", "world_size": 2, "seq_len": 64}
    return resolve_run(rest | {"strategy": given}).strategy.bucket_mib

def calls(name, **more):
    return predicted_collectives(preset("gpt-tiny"), name, 2, 1, **more)[0].calls

print(resolved("zz-ddp"), resolved(strategy(bucket_mib=1)))
print(calls("zz-ddp") == calls("ddp", bucket_mib=1) > calls("ddp"))
try:
    resolved(strategy(bucket_mib=25))
except RequestError as e:
    print(e)
"""
    values, more_calls, refused = printed(project, asked).splitlines()
    assert values.split() == ["1.0", "1.0"] and more_calls == "True"
    assert refused == (
        "strategy zz-ddp: bucket_mib 25, and its only value is 1; leave bucket_mib out, or write"
        " name: ddp"
    )


def test_a_variant_is_not_offered_beside_its_original(project):
    """Layouts name the original once; who asked for the variant reads how to write it."""
    asked = """
from llmbench.core.errors import RequestError
from llmbench.spec.layouts import valid_layouts
from llmbench.spec.presets import preset
from llmbench.spec.resolve import resolve_run

found = valid_layouts(preset("gpt-tiny"), 4, names=("zz-ddp", "fsdp"))
print(sorted({a.name for a in found}))
rest = {"model": "gpt-tiny", "world_size": 4, "seq_len": 64}
try:
    resolve_run(rest | {"strategy": {"name": "zz-ddp", "dp": 3}})
except RequestError as e:
    print(e)
"""
    names, refused = printed(project, asked).splitlines()
    assert "zz-ddp" not in names and "'ddp'" in names
    offered = refused.partition("; valid on 4 ranks: ")[2]
    assert "dp 4 (name: ddp)" in offered and "(name: zz-ddp)" not in offered
    assert offered.endswith("; the same degrees of ddp are valid with name: zz-ddp, its variant")


def test_predictions_follow_from_the_facts_of_a_row(project):
    """A row with the facts of fsdp, or of zero1, has their memory and traffic."""
    asked = """
from llmbench.plan.memory import memory_per_rank
from llmbench.plan.traffic import predicted_collectives
from llmbench.spec.presets import preset

def predicted(name, compute):
    model = preset("gpt-tiny")
    memory = memory_per_rank(model, name, 4, micro=2, seq_len=64, accum=2, compute=compute)
    return memory, predicted_collectives(model, name, 4, 2, compute)

for twin, name in (("shards", "fsdp"), ("stage-one", "zero1")):
    print(all(predicted(twin, c) == predicted(name, c) for c in ("float32", "bfloat16")))
print(predicted("shards", "float32") == predicted("stage-one", "float32"))
"""
    assert printed(project, asked).split() == ["True", "True", "False"]


def test_plan_names_no_strategy():
    """A formula depends on what a strategy shards and reduces, as its row has it, not on names."""
    demo = ROOT / "llmbench/plan/examples.py"
    for module in sorted(set((ROOT / "llmbench/plan").glob("*.py")) - {demo}):
        constants = [n for n in ast.walk(ast.parse(module.read_text())) if type(n) is ast.Constant]
        named = {n.value for n in constants if n.value in STRATEGY_TABLE}
        assert not named, f"{module}: {sorted(named)}"


def strategies_named(source: str) -> set[str]:
    """The strategies that a module's strings name. One of tp, pp, cp and ep names a strategy only
    where a name is compared with it; elsewhere it is a degree.
    """
    named, compared = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = set(node.value.replace(",", " ").split())
            named |= words - DEGREES if words <= set(STRATEGY_TABLE) else set()
        if isinstance(node, ast.Compare):
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            if any(re.search(r"\b(name|strategy)\b\W*$", side) for side in sides):
                compared |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
    return named | compared & set(STRATEGY_TABLE)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("if spec.strategy.name == 'ep': pass", {"ep"}),
        ("ok = row['strategy'] in ('ddp', 'tp')", {"ddp", "tp"}),
        ("for_what = 'zero1, zero2'", {"zero1", "zero2"}),
        ("'A mixed group.'; degrees = ('tp', 'pp'); key = degree == 'cp'", set()),
    ],
)
def test_names_are_found_in_the_syntax_tree(source, named):
    assert strategies_named(source) == named


def test_a_strategy_is_named_in_the_table_and_by_builders():
    """Every other module reads the facts of a row; NAMES_A_STRATEGY lists the exceptions."""
    package, found = ROOT / "llmbench", {}
    for path in sorted(package.rglob("*.py")):
        module = str(path.relative_to(package))
        if module != "spec/strategies.py" and not module.startswith("train/strategies/"):
            found |= {module: names} if (names := strategies_named(path.read_text())) else {}
    assert set(found) == set(NAMES_A_STRATEGY), {
        module: sorted(found.get(module, ())) for module in set(found) ^ set(NAMES_A_STRATEGY)
    }
