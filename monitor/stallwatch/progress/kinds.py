"""What a rank that stands does, as far as it may end by itself: the kinds with which telling has patience.

A lock, a C call that sleeps with the GIL, a collective: none of these ends by itself as far as anybody can see.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stallwatch.config_sections import TellSection
from stallwatch.model.verdict import EndsByItself, Where

_BY_PLACE: dict[Where, EndsByItself] = {
    "checkpoint": "storage", "filesystem": "storage", "dataloader": "data", "socket": "network", "compile": "compile",
}  # fmt: skip
# Where a sleep is a back-off. A lock that is polled, a store, a collective are what they are.
_BACKS_OFF: frozenset[Where] = frozenset({"user_code", "socket", "dataloader", "checkpoint", "filesystem"})
# On the CPU there it computes; in a collective or waiting for its GPU it spins.
_COMPUTES: frozenset[Where] = frozenset({"user_code", "busy_loop", "gil", "unknown"})
_WORDS: dict[EndsByItself, str] = {
    "sleep": "it sleeps, as between retries",
    "compute": "it computes",
    "first_use": "communicators connect at their first use",
    "storage": "storage may answer late",
    "network": "the network may answer late",
    "data": "the data loader may deliver late",
    "compile": "it compiles",
    "import": "it imports",
    "tracker": "its experiment tracker finishes",
    "child": "it waits for a program that it started",
    "timeout": "its wait has a time-out of its own",
    "lock": "a program that is none of the job's ranks holds its lock",
    "request": "it waits for requests",
}


class Doing(NamedTuple):
    """What is known of the judged thread of a rank."""

    where: Where
    tracker: bool = False  # it is inside of an experiment tracker
    imports: bool = False
    child: bool = False  # it waits for a process that it started
    sleeps: bool = False  # by the kernel, or by the text of its line
    on_cpu: bool = False
    bounded: bool = False  # its wait has a time-out, or is one for a database's lock
    serves: bool = False  # it stands where servers wait for requests
    helper: EndsByItself | None = None  # what a thread does that its wait may be for


class Patience(NamedTuple):
    """How long something may last, and why so long."""

    seconds: float
    why: str  # with the setting behind it


def kind_of(doing: Doing) -> EndsByItself | None:
    """Given what a rank does, return what of it may end by itself."""
    if doing.tracker:
        return "tracker"
    if doing.imports:
        return "import"
    if doing.child and doing.where != "compile":
        return "child"
    if doing.serves:
        return "request"
    if doing.where == "busy_loop" or (doing.on_cpu and doing.where in _COMPUTES):
        return "compute"
    if doing.sleeps and doing.where in _BACKS_OFF:
        return "sleep"
    if doing.where == "lock":
        return "timeout" if doing.bounded else doing.helper
    return _BY_PLACE.get(doing.where)


def of_all(kinds: Sequence[EndsByItself | None]) -> EndsByItself | None:
    """Given the kinds of several culprits, return the one with the longest patience by default; None where one of them
    does not end by itself."""
    known = [kind for kind in kinds if kind is not None]
    if not kinds or len(known) < len(kinds):
        return None
    return max(known, key=lambda kind: (patience_with(kind, TellSection()).seconds, kind))


def patience_with(kind: EndsByItself, tell: TellSection) -> Patience:
    """The patience with what ends by itself, by `[tell]`."""
    key = f"{kind}_seconds"
    seconds: float = getattr(tell, key)
    return Patience(seconds, f"{_WORDS[kind]} ({seconds:g} s, tell.{key})")
