"""llmbench from Python: eight functions; docs/python.md shows them."""

__version__ = "0.1.0"

__all__ = [
    "compare_runs",
    "load_run",
    "plan_layouts",
    "query",
    "run",
    "sweep",
    "winners",
    "write_report",
]


def __getattr__(name: str) -> object:
    """One of the eight functions, imported when it is first used: `import llmbench` stays quick."""
    if name not in __all__:
        raise AttributeError(f"module 'llmbench' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module("llmbench.cli.adopting.functions"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
