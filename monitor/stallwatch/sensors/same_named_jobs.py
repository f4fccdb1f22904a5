"""Jobs that go by one name at one time: two containers with the same default address, two runs of a script that names
its job, single processes. A job has each rank once, so two live processes of one rank are two jobs."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from stallwatch.node.procfs import namespace_of


class ProcessGroupKey(NamedTuple):
    """What ranks of one job on a node have in common, the surest first; 0: not known."""

    network: int = 0  # inode of the network namespace: an address is reached from within
    pids: int = 0  # inode of the pid namespace
    session: int = 0
    process_group: int = 0
    parent: int = 0  # the launcher


class RankClaimant(NamedTuple):
    """A process that says which rank of which job it is; all members of a call say the same job."""

    key: Hashable
    rank: int
    started: int  # any unit
    kin: ProcessGroupKey
    alive: bool = True
    ordinal: int | None = None  # what it was told before


def kin_of(pid: int, parent: int, proc: str = "/proc") -> ProcessGroupKey:
    """What cannot be read is 0; nothing here fails."""
    return ProcessGroupKey(
        namespace_of(pid, "net", proc) or 0,
        namespace_of(pid, "pid", proc) or 0,
        _or_zero(lambda: os.getsid(pid)),
        _or_zero(lambda: os.getpgid(pid)),
        parent,
    )


def separate_jobs(members: Sequence[RankClaimant]) -> dict[Hashable, int]:
    """Given all who say that they are of one job, return for each live one which of the jobs it is, from 1 on.

    Who was told an ordinal above 1 keeps it, and his kin join him; the job of who came first is 1.
    """
    living = [member for member in members if member.alive]
    if not _has_twice(living) and all(member.ordinal in (None, 1) for member in living):
        return {member.key: 1 for member in living}
    groups = sorted(_groups(living), key=lambda group: min(member.started for member in group))
    last = max((member.ordinal or 1 for member in members), default=1)
    taken: set[int] = set()
    found = {}
    for group in groups:
        known = Counter(member.ordinal for member in group if member.ordinal is not None)
        ordinal = next((ordinal for ordinal, _ in known.most_common() if ordinal not in taken), None)
        if ordinal is None and not known and not taken and all(member.ordinal is None for member in members):
            ordinal = 1
        if ordinal is None:
            ordinal = last = last + 1
        taken.add(ordinal)
        found.update({member.key: ordinal for member in group})
    return found


def _groups(living: Sequence[RankClaimant]) -> list[list[RankClaimant]]:
    for is_wrong in (_has_twice_or_known_apart, _has_twice):
        by_place = (_by(living, partial(_kin_at, place)) for place in range(len(ProcessGroupKey._fields)))
        told_apart = [groups for groups in by_place if not any(map(is_wrong, groups))]
        if told_apart:
            return _joined(min(told_apart, key=len), is_wrong)
    # Nothing tells them apart but when they came: the first of each rank, the second, …
    seen: Counter[int] = Counter()
    turns = {}
    for member in sorted(living, key=lambda member: member.started):
        turns[member.key] = seen[member.rank]
        seen[member.rank] += 1
    return _by(living, lambda member: turns[member.key])


def _joined(
    groups: Sequence[list[RankClaimant]], is_wrong: Callable[[Sequence[RankClaimant]], bool]
) -> list[list[RankClaimant]]:
    """Ranks of one job need not share anything (torchrun gives each a session, an orchestrator a container): what fits
    into the job of those that came before is of it. One more process of rank 0 made four jobs of four ranks, and a
    fifth of itself."""
    joined: list[list[RankClaimant]] = []
    for group in sorted(groups, key=lambda group: min(member.started for member in group)):
        fitting = next((one for one in joined if not is_wrong([*one, *group])), None)
        if fitting is None:
            joined.append(list(group))
        else:
            fitting += group
    return joined


def _by(members: Iterable[RankClaimant], key: Callable[[RankClaimant], int]) -> list[list[RankClaimant]]:
    groups: dict[int, list[RankClaimant]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return list(groups.values())


def _has_twice(members: Sequence[RankClaimant]) -> bool:
    return len({member.rank for member in members}) < len(members)


def _kin_at(place: int, member: RankClaimant) -> int:
    return member.kin[place]


def _has_twice_or_known_apart(members: Sequence[RankClaimant]) -> bool:
    return _has_twice(members) or len({member.ordinal for member in members} - {None}) > 1


def _or_zero(read: Callable[[], int]) -> int:
    try:
        return read()
    except OSError:
        return 0
