"""Whose the failures are that name nobody: by how many ranks their launcher saw end in that way."""

from collections.abc import Sequence
from typing import Final

from stallwatch.diagnosis.logs.consequence import LoggedFailure

_ENDS: Final = ("launcher_failure", "process_failed")
_SIGKILL: Final = 9
_CRASHES: Final = (4, 7, 8, 11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV


def owned(told: Sequence[LoggedFailure]) -> list[LoggedFailure]:
    """As many exceptions that name nobody, all alike, as ranks that their launcher saw leave with an exit code: each is
    of one of these. So with crashes of native code, in whose lines torch marks no rank, and signals of crashes."""
    left: dict[str, set[int]] = {}
    crashed: dict[str, dict[int, int | None]] = {}  # with their local ranks
    nobodys: dict[str, list[LoggedFailure]] = {}
    crashes: dict[str, list[LoggedFailure]] = {}
    marked: set[str] = set()
    killed: set[int] = set()
    for one in told:
        event = one.event
        if one.kind in _ENDS and not one.consequence and event.exit_code and event.rank is not None:
            left.setdefault(event.source, set()).add(event.rank)
        elif one.kind in _ENDS and event.exit_signal == _SIGKILL and not one.consequence:
            killed.update((event.rank,) if event.rank is not None else event.ranks)
        elif one.kind in _ENDS and event.exit_signal in _CRASHES and event.rank is not None:
            crashed.setdefault(event.source, {})[event.rank] = event.local_rank
        elif one.kind == "native_crash" and not one.consequence and one.rank is None:
            crashes.setdefault(event.source, []).append(one)
        elif (event.exception or one.kind == "not_started") and not one.consequence:
            if one.rank is not None or event.local_rank is not None:
                marked.add(event.source)
            else:
                nobodys.setdefault(event.source, []).append(one)
    owners: dict[int, int] = {}
    if len(killed) == 1:  # the kernel says who was killed by a number that its launcher has not told
        owners = {id(one): min(killed) for one in told if one.kind == "memory_killed" and one.rank is None}
    for source, ones in nobodys.items():
        alike = {(one.kind, one.event.exception, one.event.message, one.event.frame) for one in ones}
        if source not in marked and len(alike) == 1 and len(ones) == len(left.get(source, ())):
            owners |= {id(one): rank for one, rank in zip(ones, sorted(left[source]), strict=True)}
    for source, ones in crashes.items():
        told_of = crashed.get(source, {})
        ranks, anywhere = sorted(told_of), [one for one in ones if one.event.local_rank is None]
        if ranks and len(ranks) in (1, len(anywhere)):
            every = ranks * (len(anywhere) // len(ranks))
            owners |= {id(one): rank for one, rank in zip(anywhere, every, strict=True)}
        for one in ones:
            there = [rank for rank in ranks if told_of[rank] == one.event.local_rank is not None]
            owners |= {id(one): there[0]} if len(there) == 1 else {}
    return [one._replace(rank=owners[id(one)]) if id(one) in owners else one for one in told]
