"""What this process' groups are called on every rank that is in them: description and a hash of the members.

A recorder numbers the groups of its process in the order of their creation, so one group has another number on each
rank, and without a dump it tells no more. torch keeps the groups that live in the same order. Where that order may not
be the recorder's (a group was destroyed, a debug mode adds groups of its own) a number stays without a name.
"""

import sys
from typing import Optional

from stallwatch.hook.recorder import distributed

Counters = tuple[tuple[str, int, int, int], ...]  # recorder, pg_id, enqueued, completed
_LONGEST_DESCRIPTION = 60  # characters


class GroupNames:
    """Names once learned stay: a recorder gives no number twice."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # "nccl 3" to "mesh_tp 1a2b3c4d"
        self._met: set[str] = set()  # every group of torch's that was ever seen, by torch's own name
        self._lost = False

    def learn(self, counters: Counters) -> "dict[str, str]":
        """Given the numbers that the recorders use, return the names that are known of them. Some 50 µs when there is a
        new number, nothing otherwise."""
        unknown = [(recorder, pg_id) for recorder, pg_id, _, _ in counters if f"{recorder} {pg_id}" not in self.names]
        if unknown:
            try:
                self._learn(counters, unknown)
            except Exception:  # torch's private values: their absence only costs the names
                pass
        return self.names

    def _learn(self, counters: Counters, unknown: "list[tuple[str, int]]") -> None:
        module = distributed()
        if module is None or _has_groups_of_its_own(module):
            return
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        groups = list(world.pg_names.items())
        living = {name for _, name in groups}
        self._lost = self._lost or not self._met <= living
        self._met |= living
        for recorder in {recorder for recorder, _ in unknown}:
            own = [group for group, _ in groups if recorder in _backends(world, group)]
            largest = max(pg_id for name, pg_id, _, _ in counters if name == recorder)
            if not self._lost and largest < len(own):
                for pg_id in [pg_id for name, pg_id in unknown if name == recorder]:
                    self.names[f"{recorder} {pg_id}"] = _name(world, own[pg_id])


def group_name(description: str, members: "list[int]") -> str:
    """The same on every rank and node. Hundreds of groups of a mesh share a description."""
    import hashlib  # torch has loaded it

    joined = ",".join(str(rank) for rank in sorted(members))
    return f"{description[:_LONGEST_DESCRIPTION]} {hashlib.sha256(joined.encode()).hexdigest()[:8]}"


def _name(world: object, group: object) -> str:
    description: Optional[str] = getattr(group, "group_desc", None)
    return group_name(str(description or "undefined"), list(world.pg_group_ranks[group]))  # type: ignore[attr-defined]


def _backends(world: object, group: object) -> "set[str]":
    """Of "cpu:gloo,cuda:nccl" or "gloo"."""
    return {part.rpartition(":")[2] for part in str(world.pg_backend_config[group]).split(",")}  # type: ignore[attr-defined]


def _has_groups_of_its_own(module: object) -> bool:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL pairs each group with one of gloo's, which torch does not list."""
    level = getattr(module, "get_debug_level", None)
    return level is not None and level().name == "DETAIL"
