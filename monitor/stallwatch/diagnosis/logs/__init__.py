"""What logs tell: which failure came first, what follows from what, who waited for whom. Pure.

`formats` turns lines into events; `read_logs` is the one reading of them, which the claims and `doctor --log` ask. It
is loaded when it is asked for: who wants to know of one line what it means needs no more of this room.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwatch.diagnosis.logs.log_reading import LogReading, of_this_life, read_logs

__all__ = ["LogReading", "of_this_life", "read_logs"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.log_reading"), name)
