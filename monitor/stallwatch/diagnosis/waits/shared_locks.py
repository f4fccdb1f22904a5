"""Ranks that stand at a lock which another process of their node holds, or may hold: they did not stay away from what
the others wait in by themselves."""

from collections.abc import Collection, Mapping

from stallwatch.diagnosis.job.case import Case
from stallwatch.model.verdict import EndsByItself


def holders(case: Case, absent: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Given ranks that have not entered, return those at such a lock, each with the others of them that hold it by the
    kernel's word, or else may: those of its node that are seen to do something else. Empty where that would leave
    nobody: then they wait for each other."""
    at_lock = {rank for rank in absent if case.activity(rank).place.shared_lock}
    found = {rank: held for rank in sorted(at_lock) if (held := _holders(case, rank, absent, at_lock))}
    return found if len(found) < len(absent) else {}


def _holders(case: Case, rank: int, absent: Collection[int], at_lock: Collection[int]) -> tuple[int, ...]:
    host, holder = case.activity(rank).host, _holder_pid(case, rank)
    here = [one for one in sorted(absent) if one != rank and host is not None and case.activity(one).host == host]
    if holder is not None:
        return tuple(one for one in here if holder in _pids(case, one))
    return tuple(one for one in here if one not in at_lock and case.activity(one).place.stack)


def _holder_pid(case: Case, rank: int) -> int | None:
    """The process that holds the lock at which a rank waits, by the kernel; None: it waits at none, or untold."""
    place = case.activity(rank).place
    return place.lock_holder_pid if place.shared_lock else None


def _pids(case: Case, rank: int) -> set[int | None]:
    activity = case.activity(rank)
    return {activity.pid, *activity.helpers.child_pids}


def told_by_kernel(case: Case, behind: Mapping[int, Collection[int]]) -> bool:
    """Whether of each of these the kernel tells who holds its lock."""
    return all(_holder_pid(case, rank) is not None for rank in behind)


def holder_named(case: Case, rank: int) -> str | None:
    """What holds the lock that a rank waits at, by the kernel: a rank of its node, or a process; None: untold."""
    holder, host = _holder_pid(case, rank), case.activity(rank).host
    if holder is None:
        return None
    of_ranks = [one for one in case.observed if case.activity(one).host == host and one != rank]
    found = next((one for one in of_ranks if holder in _pids(case, one)), None)
    return f"process {holder}" if found is None else f"rank {found}"


def kind_at(case: Case, rank: int) -> EndsByItself | None:
    """The kind of what a rank does, if it may end by itself: as it reads, unless the kernel tells who holds the lock at
    which it waits. One that is none of the job's ranks lives, and gives it back when it has built, downloaded or read
    what it is for; with another rank it ends when that one goes on. (A helper that got a file from its rank may hold
    the lock for it; then the kernel names the rank itself.)"""
    kind, holder, host = case.activity(rank).progress.ends_by_itself, _holder_pid(case, rank), case.activity(rank).host
    if holder is None or kind == "timeout":
        return kind
    others = {case.activity(one).pid for one in case.observed if one != rank and case.activity(one).host == host}
    return None if holder in others else kind or "lock"
