"""Lets a framework that says "cuda" everywhere run on a CPU, to see that it trains the same; what it takes in time says nothing."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode


def _is_cuda(place) -> bool:
    if isinstance(place, bool):
        return False
    return isinstance(place, int) or str(place).startswith("cuda")


class OnCpu(TorchFunctionMode):
    """Factory functions and moves that name a GPU get the CPU; `Tensor.type()` answers as a GPU's
    would.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", "")
        if kwargs.get("device") is not None and _is_cuda(kwargs["device"]):
            kwargs["device"] = torch.device("cpu")
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if name == "cuda" and args:
            return args[0]
        if name == "to":
            args = tuple(
                torch.device("cpu") if isinstance(a, str | torch.device) and _is_cuda(a) else a
                for a in args
            )
        found = function(*args, **kwargs)
        return (
            found.replace("torch.", "torch.cuda.", 1)
            if name == "type" and isinstance(found, str)
            else found
        )


class _Stream:
    """A stream in which everything has happened already."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: self

    def __enter__(self):
        return self

    def __exit__(self, *told):
        return False


def install() -> OnCpu:
    """Redirect from now on; keep what is returned."""
    for name in ("synchronize", "set_device", "empty_cache", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.current_stream = torch.cuda.Stream = lambda *args, **kwargs: _Stream()
    torch.cuda.stream = lambda *args, **kwargs: contextlib.nullcontext()
    torch.Tensor.pin_memory = lambda tensor, *args, **kwargs: tensor
    mode = OnCpu()
    mode.__enter__()
    return mode


def without_random_state() -> None:
    """Megatron keeps random states of GPUs by name; without dropout nobody draws from them."""
    from megatron.core.tensor_parallel import random

    random.initialize_rng_tracker()
    random.get_cuda_rng_tracker().fork = lambda name="": contextlib.nullcontext()
    random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
