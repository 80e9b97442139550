"""The logits of converted models are those of transformers, Megatron-core and NeMo, both ways; tiny
random weights, on the processor.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from llmbench.core.errors import RequestError
from llmbench.core.files import project_root
from llmbench.core.numbers import test_near
from llmbench.frameworks.base import is_installed
from llmbench.launch.local import run_local
from llmbench.model.decoder import build_model
from llmbench.spec.presets import preset
from llmbench.spec.resolve import resolve_run
from llmbench.train.convert import from_hf, load_weights, read_shape, save_weights, to_hf
from llmbench.train.megatron.convert import MegatronLayout, from_megatron, to_megatron

pytestmark = pytest.mark.slow

SIZES = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": (
        "Llama",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
            "rms_norm_eps": 1e-5,
        },
    ),
    "llama3.1": ("Llama", {"rope_parameters": STRETCHED}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-all-heads": ("Llama", {"num_key_value_heads": 4}),
    "qwen2.5": ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}),
    "qwen2.5-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 48}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-one-of-three": (
        "Mixtral",
        {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 64},
    ),
}


@pytest.fixture(scope="module")
def hf():
    """transformers, imported by those tests only that run: it takes seconds."""
    pytest.importorskip("safetensors", reason="needs safetensors (pip install 'llmbench[convert]')")
    return pytest.importorskip(
        "transformers", reason="needs transformers (pip install 'llmbench[bench]')"
    )


TOKENS = torch.randint(0, 131, (2, 96), generator=torch.Generator().manual_seed(5))


def _theirs(hf, name):
    """A random model of transformers, in which nothing is left at one or zero."""
    family, fields = CASES[name]
    config = getattr(hf, f"{family}Config")(**SIZES | fields)
    torch.manual_seed(1)
    model = (
        getattr(hf, f"{family}ForCausalLM")._from_config(config, attn_implementation="eager").eval()
    )
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


def _logits(model, tokens=TOKENS):
    with torch.no_grad():
        out = model(tokens)
    return out if isinstance(out, torch.Tensor) else out.logits


def _ours(folder):
    return load_weights(build_model(read_shape(folder), seed=0), folder)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(hf, name, tmp_path):
    theirs = _theirs(hf, name)
    theirs.save_pretrained(tmp_path / "hf", max_shard_size="100KB")
    shape = from_hf(tmp_path / "hf", tmp_path / "ours", name="x")
    tokens = TOKENS[:, : shape.max_seq_len]
    assert _logits(theirs, tokens).std() > 0.5, "the logits say something"
    assert (_logits(_ours(tmp_path / "ours"), tokens) - _logits(theirs, tokens)).abs().max() <= 1e-4
    to_hf(
        tmp_path / "ours",
        tmp_path / "back",
        model_type="mistral" if "mistral" in name else None,
        part_bytes=100_000,
    )
    loaded, told = hf.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert type(loaded) is type(theirs) and not any(told.values()), told
    assert (_logits(loaded.eval(), tokens) - _logits(theirs, tokens)).abs().max() <= 1e-4


def test_a_window_is_the_longest_sequence(hf, tmp_path):
    """Up to the window a token sees all before it; one further, the two models part."""
    theirs = _theirs(hf, "mistral-window")
    theirs.save_pretrained(tmp_path / "hf")
    assert from_hf(tmp_path / "hf", tmp_path / "ours").max_seq_len == 48
    difference = (
        (_logits(_ours(tmp_path / "ours"), TOKENS[:, :49]) - _logits(theirs, TOKENS[:, :49]))
        .abs()
        .amax(dim=(0, 2))
    )
    assert difference[:48].max() <= 1e-4 and difference[48] > 1e-3


@pytest.mark.parametrize("name", ["llama-tiny", "qwen-tiny", "mixtral-tiny"])
def test_presets_are_read_by_transformers(hf, name, tmp_path):
    model = build_model(preset(name), seed=7)
    save_weights(model, tmp_path / "ours")
    to_hf(tmp_path / "ours", tmp_path / "hf")
    loaded, told = hf.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(told.values()), told
    assert (_logits(loaded.eval()) - _logits(model)).abs().max() <= 1e-4


def test_a_stretched_rotation_is_refused_or_exact(hf, tmp_path):
    """Llama 3.1's own is taken over, as transformers 4 and 5 write it; another one gives other
    logits and is refused.
    """
    theirs = _theirs(hf, "llama3.1")
    theirs.save_pretrained(tmp_path / "hf")
    new = json.loads((tmp_path / "hf/config.json").read_text())
    old = {k: v for k, v in new.items() if k != "rope_parameters"} | {
        "rope_theta": 500_000.0,
        "rope_scaling": new["rope_parameters"],
    }
    (tmp_path / "hf/config.json").write_text(json.dumps(old))
    assert from_hf(tmp_path / "hf", tmp_path / "old").rope_scaling.factor == 8.0
    ours = _ours(tmp_path / "old")
    assert (_logits(ours) - _logits(theirs)).abs().max() <= 1e-4
    plain = load_weights(
        build_model(ours.shape.model_copy(update={"rope_scaling": None}), seed=0), tmp_path / "old"
    )
    assert (_logits(plain) - _logits(theirs)).abs().max() > 1e-2, "the test would not notice"
    (tmp_path / "hf/config.json").write_text(
        json.dumps(old | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})
    )
    with pytest.raises(RequestError, match="dynamic"):
        from_hf(tmp_path / "hf", tmp_path / "ours")


RUN = {
    "study": "convert",
    "model": "llama-tiny",
    "seq_len": 32,
    "batch": {"micro": 1, "global_tokens": 128},
    "steps": 6,
    "warmup_steps": 1,
    "data": {"kind": "text"},
    "collective_steps": 0,
}
STARTS = {  # strategy and ranks
    "ddp": ("ddp", 2),
    "fsdp": ("fsdp", 2),
    "hsdp": ({"name": "hsdp", "dp_replicate": 2}, 4),
    "tp": ("tp", 2),
    "pp": ("pp", 2),
    "cp": ("cp", 2),
    "fsdp-cp": ({"name": "fsdp", "cp": 2}, 2),
    "tp-pp": ({"name": "mixed", "tp": 2, "pp": 2}, 4),
}


def _convert(*words):
    done = subprocess.run(
        [sys.executable, "-m", "llmbench.cli", "convert", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def _run(folder, strategy, world_size, **more):
    run = run_local(
        resolve_run(RUN | {"strategy": strategy, "world_size": world_size} | more), folder
    )
    assert run.status == "ok", run.reason
    return run


@pytest.fixture(scope="module")
def carried(tmp_path_factory):
    """What a run of two ranks has learnt, by the command line to Hugging Face's Mistral and back; a
    folder inside the project.
    """
    pytest.importorskip("safetensors", reason="needs safetensors (pip install 'llmbench[convert]')")
    folder = tmp_path_factory.mktemp("carried")
    first = _run(folder / "run", "fsdp", 2, checkpoint={"every": 6}, steps=6)
    _convert("to-hf", folder / "run/checkpoints/step-00000006", folder / "hf", "--as", "mistral")
    assert json.loads((folder / "hf/config.json").read_text())["model_type"] == "mistral"
    with tempfile.TemporaryDirectory(
        dir=project_root(), prefix=".weights-"
    ) as place:  # a request reads nothing outside the project
        _convert("from-hf", folder / "hf", place, "--name", "carried")
        weights = place.rpartition("/")[2]
        yield weights, first, _run(folder / "one", "single", 1, weights=weights)


@pytest.mark.parametrize("name", STARTS)
def test_a_run_starts_from_converted_weights_in_every_layout(carried, tmp_path, name):
    weights, first, one = carried
    assert one.steps.loss[0] < first.steps.loss[0] - 0.1, "what was learnt is there"
    run = _run(tmp_path, *STARTS[name], weights=weights)
    assert run.spec.weights == weights
    test_near(run.steps.loss, one.steps.loss, rel=1e-5)
    test_near(run.steps.grad_norm, one.steps.grad_norm, rel=1e-3)


MEGATRON = {  # the arguments of Megatron-LM; a window of [left, 0] shows left + 1 tokens
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 112,
    "num_attention_heads": 4,
    "group_query_attention": True,
    "num_query_groups": 2,
    "max_position_embeddings": 128,
    "norm_epsilon": 1e-5,
    "normalization": "RMSNorm",
    "swiglu": True,
    "add_bias_linear": False,
    "add_qkv_bias": False,
    "untie_embeddings_and_output_weights": True,
    "position_embedding_type": "rope",
    "rotary_base": 500_000,
    "use_rope_scaling": False,
    "rope_scaling_factor": 8.0,
    "vocab_size": 131,
    "padded_vocab_size": 256,
    "window_size": None,
    "transformer_impl": "local",
    "tokens": TOKENS.tolist(),
}
_QWEN = {"add_qkv_bias": True, "rotary_base": 1_000_000, "norm_epsilon": 1e-6}
FAMILIES = {
    "llama": {},
    "llama3.1": {"use_rope_scaling": True},
    "llama-tied": {"untie_embeddings_and_output_weights": False},
    "qwen2.5": _QWEN,
    "qwen2.5-tied": _QWEN | {"untie_embeddings_and_output_weights": False},
    "mistral": {"rotary_base": 1_000_000},
    "mistral-window": {"window_size": [47, 0]},
}
LAYOUTS = {
    "to-torch-dist": MegatronLayout(),
    "to-classic": MegatronLayout("torch", transformer_impl="local"),
    "to-split": MegatronLayout("torch", tp=2, pp=2, vocab_multiple=64, transformer_impl="local"),
}
ADAPTERS = Path(__file__).parent / "adapters"


def _megatron_python():
    "A Python with megatron-core, and what to add to its path; skips where there is none."
    found = os.environ.get("MEGATRON_PYTHON")
    path = os.environ.get("MEGATRON_PATH")
    if not found and not path and not is_installed("megatron.core"):
        pytest.skip(
            "no megatron-core; type: python3 -m venv .venv-megatron && .venv-megatron/bin/pip"
            " install torch==2.13.0 megatron-core==0.16.1 psutil && export"
            " MEGATRON_PYTHON=$PWD/.venv-megatron/bin/python"
        )
    return found or sys.executable, [] if found or not path else [path]


def _by_megatron(python, path, *words, ranks=1):
    """Runs the adapter. Its output goes to a file: the processes that Megatron writes with would
    keep a pipe open.
    """
    many = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [python, "-W", "ignore", *(many if ranks > 1 else []), *map(str, words)]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ADAPTERS), *path]),
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryFile("w+") as told:
        done = subprocess.run(command, env=env, stdout=told, stderr=told, timeout=600)
        told.seek(0)
        assert done.returncode == 0, told.read()[-3000:]


@pytest.fixture(scope="module")
def megatron(tmp_path_factory):
    """Random models of Megatron-core in each format, ours from them, and Megatron's formats from
    ours with the logits that Megatron computes from them.
    """
    python = _megatron_python()
    script = ADAPTERS / "megatron_checkpoint.py"
    at = tmp_path_factory.mktemp("megatron")
    folders = [at / name for name in FAMILIES]
    for folder in folders:
        folder.mkdir()
        (folder / "model.json").write_text(json.dumps(MEGATRON | FAMILIES[folder.name]))
    _by_megatron(*python, script, "new", *folders)
    _by_megatron(*python, script, "split", 2, 2, *folders, ranks=4)
    for folder in folders:
        from_megatron(folder / "torch_dist", folder / "ours")
        for name, layout in LAYOUTS.items():
            to_megatron(folder / "ours", folder / name, layout=layout)
    _by_megatron(*python, script, "join", 2, 2, *folders, ranks=4)
    written = ("to-torch-dist", "to-classic", "joined")
    _by_megatron(*python, script, "logits", *(f / name for f in folders for name in written))
    return at


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_megatron(megatron, name):
    """From torch_dist, from the same with gate and up apart, from classic files of one rank and of
    2 x 2 that Megatron has split.
    """
    folder = megatron / name
    theirs = torch.load(folder / "logits.pt")
    assert theirs.shape[-1] == 256 and theirs.std() > 0.5, "the logits say something"
    for form in ("torch_dist", "apart", "classic", "split"):
        shape = from_megatron(folder / form, folder / f"{form}-ours")
        length = min(shape.max_seq_len, 96)
        assert (shape.vocab_size, length) == (131, 48 if "window" in name else 96)
        ours = _logits(_ours(folder / f"{form}-ours"), TOKENS[:, :length])
        assert (ours - theirs[:, :length, :131]).abs().max() <= 1e-4, form


@pytest.mark.parametrize("name", FAMILIES)
def test_megatron_reads_what_is_written(megatron, name):
    "torch_dist, classic files, and those of 2 x 2 ranks, joined by Megatron."
    folder = megatron / name
    ours = _logits(_ours(folder / "ours"))
    length = 48 if "window" in name else 96
    for form in ("to-torch-dist", "to-classic", "joined"):
        theirs = torch.load(folder / f"{form}.logits.pt")
        assert (ours - theirs[..., :131])[:, :length].abs().max() <= 1e-4, form
        assert not theirs[..., 131:].any(), "the padding has no weights"


def test_a_window_of_megatron_is_the_longest_sequence(megatron):
    "One token further, the two models part."
    folder = megatron / "mistral-window"
    theirs = torch.load(folder / "logits.pt")[..., :131]
    difference = (_logits(_ours(folder / "ours")) - theirs).abs().amax(dim=(0, 2))
    assert difference[:48].max() <= 1e-4 and difference[48] > 1e-3


def test_a_checkpoint_of_nemo_both_ways(tmp_path):
    "Written by NeMo 2 with its context, and read back by it (2.7.3 was tried)."
    python = os.environ.get("NEMO_PYTHON") or str(project_root() / ".venv-nemo/bin/python")
    if not Path(python).is_file():
        pytest.skip("no NeMo: type make nemo-env, or let NEMO_PYTHON name its python")
    script = ADAPTERS / "nemo_checkpoint.py"
    tokens = torch.randint(0, 512, (2, 64), generator=torch.Generator().manual_seed(5))
    (tmp_path / "tokens.json").write_text(json.dumps(tokens.tolist()))
    _by_megatron(python, [], script, tmp_path, "first")
    shape = from_megatron(tmp_path / "first", tmp_path / "ours")
    assert (shape.n_layers, shape.vocab_size, shape.rope_scaling.factor) == (2, 512, 8.0)
    ours = _logits(_ours(tmp_path / "ours"), tokens)
    theirs = torch.load(tmp_path / "first.logits.pt")
    assert theirs.std() > 0.5 and (ours - theirs).abs().max() <= 1e-4
    to_megatron(tmp_path / "ours", tmp_path / "back", layout=MegatronLayout("nemo"))
    _by_megatron(python, [], script, tmp_path, "second", tmp_path / "back")
    assert (torch.load(tmp_path / "second.logits.pt") - ours).abs().max() <= 1e-4
