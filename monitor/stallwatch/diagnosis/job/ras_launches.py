"""What NCCL RAS counts: which ranks have launched less than their peers, or something else. Equal counts prove nothing:
what is launched is not finished."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from stallwatch.model.evidence import NodeEvidence, RasCommunicator

Launches = dict[int, tuple[tuple[str, int], ...]]  # of a communicator: each rank's counts by operation


class OtherLaunch(NamedTuple):
    """Ranks that have launched an operation where most of their communicator launched another."""

    ranks: tuple[int, ...]
    found: str  # as NCCL names it
    expected: str


def launches_of(nodes: Iterable[NodeEvidence], pids: Mapping[int, int], world_size: int) -> tuple[Launches, ...]:
    """Given all nodes' reports, the ranks' pids as they know themselves and the size of the world, return what each
    rank has launched, a communicator each.

    A pid that several ranks have (one per node) names nobody. A communicator of another job says nothing: the first job
    of a node has its service, and in containers that share the node's network both may have the same pids.
    """
    owners: dict[int, list[int]] = {}
    for rank, pid in pids.items():
        owners.setdefault(pid, []).append(rank)
    return tuple(
        {
            owners[member.pid][0]: member.counts
            for member in communicator.ranks
            if member.counts and not member.missing and len(owners.get(member.pid, ())) == 1
        }
        for node in nodes
        for communicator in node.ras
        if not _is_of_another_job(communicator, owners, world_size)
    )


def _is_of_another_job(communicator: RasCommunicator, owners: Mapping[int, Sequence[int]], world_size: int) -> bool:
    """Whether it has a process that is none of the job's, all of which are known; or the job's in another order: torch
    sorts the members of each group."""
    all_known = len(owners) == world_size  # each by a pid of its own
    if all_known and any(member.pid not in owners for member in communicator.ranks if not member.missing):
        return True
    members = [
        (member.rank, owners[member.pid][0]) for member in communicator.ranks if len(owners.get(member.pid, ())) == 1
    ]
    if communicator.size == world_size:
        return any(place != rank for place, rank in members)
    return any(one >= other for (_, one), (_, other) in pairwise(members))


def ranks_behind(launches: Iterable[Launches]) -> frozenset[int]:
    """Given what was launched, return ranks that launched fewer collectives than most of a communicator did.

    Fewer than the one that launched most says little: a CPU runs ahead, and a rank that called something extra leads.
    """
    return frozenset(rank for counts in launches for rank in _lagging(_totals(counts)))


def ranks_awaited(launches: Sequence[Launches], among: Collection[int]) -> frozenset[int]:
    """Given what was launched, return those of `among`, compared with each other, that are behind and wait for nobody
    themselves: in no communicator another member of it has launched less than they have, nor are they in one that has
    counted no collective: it carries sends and receives, which RAS does not count."""
    totals = [_totals(counts) for counts in launches]
    waiting = {
        rank
        for counts in totals
        for rank, total in counts.items()
        if total > min(counts.values()) or not any(counts.values())
    }
    compared = ({rank: total for rank, total in counts.items() if rank in among} for counts in totals)
    return frozenset(rank for counts in compared for rank in _lagging(counts)) - waiting


def launched_other(launches: Iterable[Launches]) -> OtherLaunch | None:
    """Given what was launched, return who launched as many collectives as most of its communicator, but other ones."""
    for counts in launches:
        kinds = Counter(counts.values())
        usual, number = max(kinds.items(), key=lambda item: item[1], default=((), 0))
        ranks = tuple(sorted(rank for rank, each in counts.items() if each != usual))
        if not ranks or len(counts) < 3 or 2 * number <= len(counts) or len(kinds) != 2:
            continue
        expected, found = Counter(dict(usual)), Counter(dict(counts[ranks[0]]))
        lacks, extra = expected - found, found - expected
        if len(lacks) == len(extra) == 1 and lacks.total() == extra.total() == 1:
            return OtherLaunch(ranks, next(iter(extra)), next(iter(lacks)))
    return None


def _totals(counts: Launches) -> dict[int, int]:
    return {rank: sum(number for _, number in each) for rank, each in counts.items()}


def _lagging(totals: Mapping[int, int]) -> set[int]:
    if len(totals) < 3:
        return set()
    usual = median_low(totals.values())
    return {rank for rank, total in totals.items() if total < usual}
