"""From evidence to a verdict: pure, so that an incident on disk replays to the same sentence.

What is imported from here is loaded when it is asked for: the child that reduces a recorder needs one room, not all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwatch.diagnosis.logs import read_logs
    from stallwatch.diagnosis.verdicts import Judgement, judge

__all__ = ["Judgement", "judge", "read_logs"]

_MODULES = {"Judgement": "verdicts", "judge": "verdicts", "read_logs": "logs"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
