"""NCCL RAS: who has launched less than its peers. Equal counts prove nothing: everything launched is not finished."""

from collections.abc import Iterable, Mapping
from statistics import median_low

from stallwatch.model.evidence import NodeEvidence, RasCommunicator


def ranks_behind(nodes: Iterable[NodeEvidence], pids: Mapping[int, int]) -> frozenset[int]:
    """Given all nodes' reports and the ranks' pids, return ranks that launched fewer collectives than most peers did.

    Fewer than the one that launched most says little: a CPU runs ahead, and a rank that called something extra leads.
    A pid that several ranks have (one per node) names nobody.
    """
    owners: dict[int, list[int]] = {}
    for rank, pid in pids.items():
        owners.setdefault(pid, []).append(rank)
    behind: set[int] = set()
    for node in nodes:
        for communicator in node.ras:
            behind |= {owners[pid][0] for pid in _lagging(communicator) if len(owners.get(pid, ())) == 1}
    return frozenset(behind)


def _lagging(communicator: RasCommunicator) -> set[int]:
    launched = {
        member.pid: sum(count for _, count in member.counts)
        for member in communicator.ranks
        if member.counts and not member.missing
    }
    if len(launched) < 3:
        return set()
    usual = median_low(launched.values())
    return {pid for pid, count in launched.items() if count < usual}
