"""What a rank raised after others had waited in vain, or after it had itself, and what came after another's failure:
by the times of lines, and by their order within one log."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from stallwatch.diagnosis.logs.consequence import is_late, is_of_the_world
from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.strength import OF_A_RANK, TIMEOUTS
from stallwatch.diagnosis.logs.watchdog_reports import GroupReading, read_groups
from stallwatch.formats.log_time import moment
from stallwatch.model.log_event import PROCESS_ENDS, LogEvent

_CLEARLY_LATER_SECONDS: Final = 2.0
_AGENTS_APART_SECONDS: Final = 10.0  # they look at their processes every 5 s at most
_AFTER_OTHERS: Final = "it came after ranks had waited in vain"
_AFTER_ITS_OWN: Final = "its rank had waited in vain as the others had, and went on"
# Of these lines the rank itself says when it failed.
_SAID_BY_ITSELF: Final = frozenset(OF_A_RANK - {"address_in_use", "gpu_xid", "gpu_lost", "memory_killed", "node_failed",
                                                "evicted"})  # fmt: skip
# What Python and its libraries raise of data and code; not of waits, pipes and servers, which others' ends raise too.
_OF_DATA_AND_CODE: Final = frozenset({
    "ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "NameError", "UnboundLocalError",
    "ImportError", "ModuleNotFoundError", "NotImplementedError", "AssertionError", "ZeroDivisionError",
    "FloatingPointError", "OverflowError", "RecursionError", "UnicodeDecodeError", "JSONDecodeError",
    "FileNotFoundError", "PermissionError", "IsADirectoryError", "NotADirectoryError", "UnidentifiedImageError",
    "MemoryError", "OutOfMemoryError",
})  # fmt: skip
# What these say of other processes, or as things come down; a file without a name is a socket of multiprocessing's.
_MAY_BE_OF_OTHERS: Final = re.compile(
    r"process|distributed|\brank|worker|peer|time[d ]*out|closed|connect|heartbeat|engine|actor|socket|pipe|/dev/shm"
    r"|pymp-|torch_shm|No such file or directory$",
    re.IGNORECASE,
)


def later_failures(told: Sequence[LoggedFailure], events: Sequence[LogEvent]) -> list[LoggedFailure]:
    """What came clearly after a time-out, or after another rank's failure, follows from it, unless its rank is whom
    those waited for; and nobody waited for a rank that was itself in the call in which all waited."""
    groups = read_groups(events)
    told = [one._replace(consequence=_AFTER_ITS_OWN) if _had_waited(one, told, groups) else one for one in told]
    own = [one for one in told if not one.consequence and one.event.at_seconds is not None and not is_late(one.event)]
    awaited = _awaited(told, groups)
    late_roots = _late_roots(told)
    first_timeout = _earliest(one for one in own if one.kind in TIMEOUTS)
    failures = [one for one in own if one.kind in OF_A_RANK or one.kind in PROCESS_ENDS]
    first_failure = _earliest(failures)
    out = []
    for one in told:
        why = "it came after another failure" if one in late_roots else ""
        if one in own:
            late = one.kind in OF_A_RANK or one.kind in PROCESS_ENDS or one.kind in ("heartbeat_stuck", "gil_clue")
            may_follow = late and not (one.rank in awaited and _is_of_the_rank_alone(one))
            if may_follow and first_timeout is not None and _is_later(one.event, first_timeout.event):
                why = _AFTER_OTHERS
            elif one in failures and first_failure is not None and _is_later(one.event, first_failure.event):
                why = "it came after another failure"
        elif (
            not one.consequence
            and one.kind in ("heartbeat_stuck", "gil_clue")
            and any(o.kind in TIMEOUTS for o in told)
        ):
            why = _AFTER_OTHERS
        out.append(one._replace(consequence=why) if why else one)
    return out


def _had_waited(one: LoggedFailure, told: Iterable[LoggedFailure], groups: Iterable[GroupReading]) -> bool:
    """Whether a rank said this after it had waited in vain, by its own word, in what all others wait in: it had come,
    so that nobody waited for it. Not where it stood elsewhere: Python prints an exception when its `finally` is done,
    which may wait for ranks that never come there."""
    if one.consequence or one.rank is None or one.kind not in _SAID_BY_ITSELF or one.event.chained:
        return False
    waits = [group.waiters[one.rank].event for group in groups if one.rank in group.waiters and _all_in_one_call(group)]
    waits += [other.event for other in told if other.kind == "gloo_timeout" and other.rank == one.rank]
    return any(is_before(wait, one.event) for wait in waits)


def _all_in_one_call(group: GroupReading) -> bool:
    calls = {(w.seq, w.operation, w.numel_in, w.numel_out) for w in group.waiters.values()}
    return len(calls) == 1 and len(group.waiters) > 1 and not group.absent()


def _awaited(told: Iterable[LoggedFailure], groups: Sequence[GroupReading]) -> set[int]:
    """Ranks that had not come to what others waited in to the end, where each that had not come has raised something by
    itself: it was busy for as long as they waited."""
    told = list(told)
    ranks = {one.rank for one in told if one.rank is not None}
    raised = {one.rank for one in told if one.rank is not None and not one.consequence and _is_of_the_rank_alone(one)}
    waited = {one.rank for one in told if one.rank is not None and one.kind in TIMEOUTS}
    waited |= {rank for group in groups for rank in group.waiters}
    found: set[int] = set()
    world = range(max((*ranks, *(rank for group in groups for rank in group.heard)), default=-1) + 1)
    of_groups = [group for group in groups if group.waiters]
    for group in of_groups:
        seq = group.waited_in_vain
        if seq is None or not group.comparable:
            continue
        came = {rank for rank, last in group.enqueued.items() if last >= seq}
        lacking = {*group.members(world)[0]} - {*group.waiters} - came
        found |= lacking if lacking <= raised - waited else set()
    if not of_groups:  # gloo's ranks say no more than that they waited, or that one of them has gone
        lost = {one.rank for one in told if one.rank is not None and one.consequence and one.event.exception}
        lacking = {*world} - waited - lost
        found |= lacking if waited and lacking <= raised else set()
    return found


def is_before(event: LogEvent, other: LogEvent) -> bool:
    """By time where both have one of their own, else by the lines of one log."""
    timed = event.at_seconds is not None and other.at_seconds is not None and event.utc == other.utc
    if timed and (event.at_seconds != other.at_seconds or event.source != other.source):
        return (event.at_seconds or 0.0) < (other.at_seconds or 0.0)
    return event.source == other.source and event.line < other.line


def _late_roots(told: Iterable[LoggedFailure]) -> list[LoggedFailure]:
    """Agents of several nodes name a first failure each: those that are clearly later than the first of them."""
    roots = [
        (when.seconds, one)
        for one in told
        if one.kind == "launcher_failure" and one.event.first and not one.consequence
        and (when := moment(one.event.at or ""))
    ]  # fmt: skip
    first = min((seconds for seconds, _ in roots), default=0.0)
    return [one for seconds, one in roots if seconds > first + _AGENTS_APART_SECONDS]


def _earliest(told: Iterable[LoggedFailure]) -> LoggedFailure | None:
    """The first in time, where all that have one have it by one clock."""
    timed = [one for one in told if one.event.at_seconds is not None]
    if len({one.event.utc for one in timed}) != 1:
        return None
    return min(timed, key=lambda one: one.event.at_seconds or 0.0)


def _is_later(event: LogEvent, other: LogEvent) -> bool:
    if event.at_seconds is None or other.at_seconds is None or event.utc != other.utc:
        return False
    return event.at_seconds > other.at_seconds + _CLEARLY_LATER_SECONDS


def _is_of_the_rank_alone(one: LoggedFailure) -> bool:
    """Whether no other rank's end or absence raises the like, whenever it came."""
    event = one.event
    if is_of_the_world(event) and not (event.secondary or event.cut or event.chained):
        return True
    if one.kind not in ("exception", "out_of_memory") or event.secondary or event.cut or event.chained:
        return False
    named = (event.exception or "").rpartition(".")[2] in _OF_DATA_AND_CODE
    return (named or one.kind == "out_of_memory") and not _MAY_BE_OF_OTHERS.search(
        "" if one.kind == "out_of_memory" else event.message or ""
    )
