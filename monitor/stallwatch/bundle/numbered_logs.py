"""Files that lie side by side under names that differ in a number: whether that is the rank, their contents tell."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from stallwatch.model.evidence import Stacks
from stallwatch.model.log_event import PROCESS_ENDS, LogTail

_NUMBER: Final = re.compile(r"\d{1,6}")
_FEWEST: Final = 2  # logs whose own lines agree with their number
# What launchers and schedulers say in anybody's log of others.
_OF_OTHERS: Final = frozenset((*PROCESS_ENDS, "memory_killed", "dump_signal", "barrier_absent"))


def ranks_of_logs(logs: Mapping[str, LogTail]) -> dict[str, int]:
    """Given logs by their names, return the rank of those of which the number in the name is one.

    Where at least two of "slurm-77_0.out", "slurm-77_1.out", … hold lines of one rank alone, and that is the number
    in all of them that tell any, the others are of their numbers' ranks, too.
    """
    families: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    twice: set[tuple[str, str]] = set()
    for name in sorted(logs):
        for match in _NUMBER.finditer(name):
            family = name[: match.start()], name[match.end() :]
            if families[family].setdefault(int(match[0]), name) != name:
                twice.add(family)  # "log_1" and "log_01"
    found: dict[str, int] = {}
    for family, members in sorted(families.items()):
        told = {number: _told(logs[name]) for number, name in members.items()}
        agree = [number for number, ranks in told.items() if ranks == {number}]
        if family not in twice and len(agree) >= _FEWEST and all(not r or r == {n} for n, r in told.items()):
            found |= {name: number for number, name in members.items()}
    return found


def _told(log: LogTail) -> set[int]:
    """The ranks that wrote into it; of torch before 2.2, which marks no line, by the place in the first group."""
    told = {e.rank for e in log.events if e.rank is not None and e.kind not in _OF_OTHERS}
    places = {e.group_rank for e in log.events if e.rank is None and e.group_rank is not None and not e.group}
    return told or {place for place in places if place is not None}


def is_named_by_pid(number: int, value: Any) -> bool:
    """Whether the number in the name of a file of stacks is the process' own: "pyspy-4711.txt"."""
    return isinstance(value, Stacks) and value.pid == number


def of_no_rank(kind: str) -> str:
    """What is said of a file that tells no rank."""
    named = " (stacks are of the rank in their file's name: stacks_rank0.txt)" if kind == "stacks" else ""
    return f"its name does not say of which rank it is; it is not used{named}"
