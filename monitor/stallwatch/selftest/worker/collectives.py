"""Every collective with a result that is checked; each function runs one operation on about `size` bytes a rank.

`size` is the larger of a rank's input and output, as in nccl-tests, so that bandwidths compare.
"""

from typing import Any, Callable, NamedTuple

from stallwatch.selftest.worker.known_results import ELEMENT_BYTES, compare, pattern, pattern_sum


class TrialGroup(NamedTuple):
    """The ranks that take part. `members` are global ranks; `rank` is this one's place among them."""

    torch: Any
    device: Any
    members: "tuple[int, ...]"
    rank: int
    handle: Any = None  # None: the default group

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.members)

    def data(self, count: int, rank: int, start: int = 0) -> Any:
        """Return `count` elements on the device as this rank of the group has them, from element `start` of its
        pattern."""
        return pattern(self.torch, self.device, count, rank, start)

    def empty(self, count: int) -> Any:
        """Return room for `count` elements on the device, filled with -1, which no pattern has."""
        return self.torch.full((count,), -1.0, device=self.device)

    def check(self, found: Any, expected: Any, what: str = "element") -> None:
        """Raise Wrong where the tensor that was received differs from what it must be; `what` names one of its
        elements."""
        compare(self.torch, found, expected, what)


Run = Callable[[TrialGroup, int], None]
Prepare = Callable[[TrialGroup, int], Callable[[], None]]


class Collective(NamedTuple):
    """One operation that is tried at every size: how it is run and checked, and how often it may be repeated bare."""

    name: str
    run: Run
    repeat: "Prepare | None" = None  # the bare operation, for its bandwidth
    bus_share: "Callable[[int], float] | None" = None  # of algorithm to bus bandwidth, as nccl-tests define it


def _elements(size: int) -> int:
    return max(1, size // ELEMENT_BYTES)


def _chunk(group: TrialGroup, size: int) -> int:
    return max(1, _elements(size) // group.size)


def _root(group: TrialGroup, size: int) -> int:
    """Another root at every size, so that most ranks are one."""
    return size.bit_length() // 3 % group.size


def all_reduce(group: TrialGroup, size: int) -> None:
    """Sum `size` bytes of every rank; raise Wrong unless this one has the sum of all patterns."""
    count = _elements(size)
    data = group.data(count, group.rank)
    group.torch.distributed.all_reduce(data, group=group.handle)
    group.check(data, pattern_sum(group.torch, group.device, count, group.size))


def broadcast(group: TrialGroup, size: int) -> None:
    """Send `size` bytes of one root to all; raise Wrong unless this rank has the root's pattern."""
    count, root = _elements(size), _root(group, size)
    data = group.data(count, root) if group.rank == root else group.empty(count)
    group.torch.distributed.broadcast(data, group.members[root], group=group.handle)
    group.check(data, group.data(count, root))


def reduce(group: TrialGroup, size: int) -> None:
    """Sum `size` bytes of every rank at one root; raise Wrong there unless it has the sum of all patterns."""
    count, root = _elements(size), _root(group, size)
    data = group.data(count, group.rank)
    group.torch.distributed.reduce(data, group.members[root], group=group.handle)
    if group.rank == root:
        group.check(data, pattern_sum(group.torch, group.device, count, group.size))


def all_gather(group: TrialGroup, size: int) -> None:
    """Gather a part of each rank, `size` bytes in all; raise Wrong unless this one has every rank's pattern."""
    count = _chunk(group, size)
    parts = [group.empty(count) for _ in group.members]
    group.torch.distributed.all_gather(parts, group.data(count, group.rank), group=group.handle)
    for rank, part in enumerate(parts):
        group.check(part, group.data(count, rank), f"from rank {group.members[rank]}, element")


def reduce_scatter(group: TrialGroup, size: int) -> None:
    """Sum `size` bytes of every rank and leave each its part; raise Wrong unless this one's is the sum of all patterns
    there."""
    count = _chunk(group, size)
    own = group.empty(count)
    data = group.data(count * group.size, group.rank)
    group.torch.distributed.reduce_scatter_tensor(own, data, group=group.handle)
    group.check(own, pattern_sum(group.torch, group.device, count, group.size, start=count * group.rank))


def all_to_all(group: TrialGroup, size: int) -> None:
    """Exchange equal parts of `size` bytes among all; raise Wrong unless each has come from its rank."""
    count = _chunk(group, size)
    received = group.empty(count * group.size)
    data = group.data(count * group.size, group.rank)
    group.torch.distributed.all_to_all_single(received, data, group=group.handle)
    for rank in range(group.size):
        part = received[rank * count : (rank + 1) * count]
        expected = group.data(count, rank, start=count * group.rank)
        group.check(part, expected, f"from rank {group.members[rank]}, element")


def gather(group: TrialGroup, size: int) -> None:
    """Gather a part of each rank, `size` bytes in all, at one root; raise Wrong there unless it has every rank's
    pattern."""
    count, root = _chunk(group, size), _root(group, size)
    parts = [group.empty(count) for _ in group.members] if group.rank == root else None
    group.torch.distributed.gather(group.data(count, group.rank), parts, group.members[root], group=group.handle)
    for rank, part in enumerate(parts or ()):
        group.check(part, group.data(count, rank), f"from rank {group.members[rank]}, element")


def scatter(group: TrialGroup, size: int) -> None:
    """Send each rank its part of `size` bytes of one root; raise Wrong unless this one has its own."""
    count, root = _chunk(group, size), _root(group, size)
    parts = [group.data(count, rank) for rank in range(group.size)] if group.rank == root else None
    own = group.empty(count)
    group.torch.distributed.scatter(own, parts, group.members[root], group=group.handle)
    group.check(own, group.data(count, group.rank))


def barrier(group: TrialGroup, size: int) -> None:
    """Wait until every rank of the group has come; `size` means nothing here."""
    group.torch.distributed.barrier(group=group.handle)


def _repeat_all_reduce(group: TrialGroup, size: int) -> "Callable[[], None]":
    data = group.data(_elements(size), group.rank)
    return lambda: group.torch.distributed.all_reduce(data, group=group.handle)


def _repeat_all_gather(group: TrialGroup, size: int) -> "Callable[[], None]":
    own = group.data(_chunk(group, size), group.rank)
    whole = group.empty(_chunk(group, size) * group.size)
    return lambda: group.torch.distributed.all_gather_into_tensor(whole, own, group=group.handle)


def _repeat_reduce_scatter(group: TrialGroup, size: int) -> "Callable[[], None]":
    whole = group.data(_chunk(group, size) * group.size, group.rank)
    own = group.empty(_chunk(group, size))
    return lambda: group.torch.distributed.reduce_scatter_tensor(own, whole, group=group.handle)


def _repeat_all_to_all(group: TrialGroup, size: int) -> "Callable[[], None]":
    data = group.data(_chunk(group, size) * group.size, group.rank)
    received = group.empty(_chunk(group, size) * group.size)
    return lambda: group.torch.distributed.all_to_all_single(received, data, group=group.handle)


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


COLLECTIVES = (
    Collective("all_reduce", all_reduce, _repeat_all_reduce, lambda ranks: 2 * _others(ranks)),
    Collective("broadcast", broadcast),
    Collective("reduce", reduce),
    Collective("all_gather", all_gather, _repeat_all_gather, _others),
    Collective("reduce_scatter", reduce_scatter, _repeat_reduce_scatter, _others),
    Collective("all_to_all", all_to_all, _repeat_all_to_all, _others),
    Collective("gather", gather),
    Collective("scatter", scatter),
)
