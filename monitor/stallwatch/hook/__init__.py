"""Runs inside training jobs: standard library only, Python 3.9+, never raises, never blocks.

`layout` is for everybody; the rest is loaded when `attach` is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwatch.hook.attachment import attach

__all__ = ["attach"]


def __getattr__(name: str) -> object:
    if name == "attach":
        from stallwatch.hook.attachment import attach

        return attach
    if name in ("lightning", "transformers"):  # the callbacks; they import nothing of the libraries until one is made
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
