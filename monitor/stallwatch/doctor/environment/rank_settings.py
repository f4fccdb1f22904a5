"""Ranks of one job compared: settings and versions that must not differ."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.surroundings import RankFacts, Surroundings
from stallwatch.model.rank_variables import is_alike_in_health

# NCCL decides by these how to talk; ranks that decide differently wait for each other.
_MUST_MATCH = frozenset((
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET",
    "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_BUFFSIZE", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_COLLNET_ENABLE",
    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS", "NCCL_CROSS_NIC", "NCCL_NET_PLUGIN",
    "NCCL_PXN_DISABLE", "WORLD_SIZE", "TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_USE_COMM_NONBLOCKING",
    "TORCH_NCCL_BCAST_UNIQUEID",
))  # fmt: skip


class RanksDiffer:
    """Compares living ranks of one job; Undetermined where nobody knows which run here, Inapplicable for fewer than
    two."""

    name: ClassVar[str] = "ranks_differ"
    area: ClassVar[Area] = "environment"
    looks_for: ClassVar[str] = "settings and versions that differ between the ranks of a job on this node"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each setting or version in which living ranks of a job differ, with who has what."""
        if surroundings.ranks_unknown:
            raise Undetermined(surroundings.ranks_unknown)
        jobs: dict[tuple[str, ...], list[RankFacts]] = defaultdict(list)
        for rank in surroundings.ranks:
            if rank.alive:
                jobs[rank.job].append(rank)
        compared = [ranks for ranks in jobs.values() if len(ranks) > 1]
        if not compared:
            raise Inapplicable("fewer than two ranks of one job run here")
        return tuple(record for ranks in compared for record in self._job(ranks))

    def _job(self, ranks: list[RankFacts]) -> Iterator[FindingRecord]:
        names = {
            name
            for rank in ranks
            for name in rank.environment
            if is_alike_in_health(name) or name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
        }
        yield from self._twice(ranks)
        for name in sorted(names):
            values = {rank.rank: rank.environment.get(name) for rank in ranks}
            if len(set(values.values())) > 1:
                yield finding(
                    self,
                    "error" if name in _MUST_MATCH else "warning",
                    _who(ranks),
                    seen=f"{name} differs: {_spread(values)}.",
                    why="Ranks that choose different algorithms, transports or sizes, or count each other differently, "
                    "wait for each other for ever."
                    if name in _MUST_MATCH
                    else "What is tuned or recorded differs from rank to rank.",
                    remedy=f"set {name} in the launcher, not in a shell profile of one host, and start again",
                    source="NCCL user guide" if name.startswith("NCCL_") else "",
                )
        for library in ("torch", "nccl", "cuda"):
            versions = {rank.rank: rank.versions.get(library) for rank in ranks if rank.versions}
            if len(set(versions.values())) > 1:
                yield finding(
                    self,
                    "error",
                    _who(ranks),
                    seen=f"Versions of {library} differ: {_spread(versions)}.",
                    why="Different versions may choose different algorithms for the same call; NCCL refuses or hangs.",
                    remedy="start every rank with the same interpreter",
                )

    def _twice(self, ranks: list[RankFacts]) -> Iterator[FindingRecord]:
        """Two processes that both say they are one rank: one is of an earlier run, or the launcher numbers wrongly."""
        by_rank: dict[int, list[RankFacts]] = defaultdict(list)
        for rank in ranks:
            by_rank[rank.rank].append(rank)
        for number, same in sorted(by_rank.items()):
            if len(same) > 1:
                pids = [str(one.pid) for one in same]
                yield finding(
                    self,
                    "error",
                    f"rank {number}",
                    seen=f"Processes {', '.join(pids)} both are rank {number} of one job.",
                    why="The store takes the one for the other: the rendezvous hangs, or collectives mix two runs.",
                    remedy=f"ps -o pid,ppid,lstart,args -p {','.join(pids)}: end the one of the earlier run, or "
                    "correct how the launcher sets RANK",
                )


def _who(ranks: list[RankFacts]) -> str:
    return f"ranks {', '.join(str(rank.rank) for rank in sorted(ranks, key=lambda one: one.rank))}"


def _spread(values: Mapping[int, str | None]) -> str:
    by_value: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        by_value["not set" if value is None else value].append(rank)
    return "; ".join(f"{value} on rank {', '.join(map(str, ranks))}" for value, ranks in by_value.items())
