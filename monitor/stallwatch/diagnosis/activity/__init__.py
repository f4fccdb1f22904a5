"""What one rank does: which thread matters, where it stands, whether it moves. Pure; reads no other rank.

What is imported from here is loaded when it is asked for: who compares recorders asks for none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwatch.diagnosis.activity.rank_activity import RankActivity
    from stallwatch.diagnosis.activity.rank_reading import read_activity

__all__ = ["RankActivity", "read_activity"]

_MODULES = {"RankActivity": "rank_activity", "read_activity": "rank_reading"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
