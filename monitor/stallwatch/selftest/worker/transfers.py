"""Sends and receives between pairs of ranks, and collectives of Python objects: results are checked."""

from typing import Any, Callable

from stallwatch.selftest.worker.collectives import TrialGroup
from stallwatch.selftest.worker.known_results import ELEMENT_BYTES
from stallwatch.selftest.worker.step_lines import Wrong

# All distances up to here, then powers of two: every ordered pair of a node of 16 is tried.
_EVERY_DISTANCE = 16


def distances(ranks: int) -> "list[int]":
    """How far each rank sends in one step: distance d joins every rank r with rank r + d."""
    return [d for d in range(1, ranks) if d < _EVERY_DISTANCE or d & (d - 1) == 0]


def exchange(group: TrialGroup, size: int, distance: int) -> None:
    """Every rank sends to the rank `distance` ahead and receives from the one behind, as one batch."""
    count = max(1, size // ELEMENT_BYTES)
    source, received, requests = _start_exchange(group, count, distance)
    for request in requests:
        request.wait()
    group.check(received, group.data(count, source), f"from rank {group.members[source]}, element")


def repeat_exchange(group: TrialGroup, size: int) -> "Callable[[], None]":
    """Return a function that exchanges `size` bytes with the neighbours once, unchecked, for measuring the
    bandwidth."""
    count = max(1, size // ELEMENT_BYTES)
    data, received = group.data(count, group.rank), group.empty(count)

    def once() -> None:
        for request in group.torch.distributed.batch_isend_irecv(_operations(group, data, received, 1)):
            request.wait()

    return once


def _start_exchange(group: TrialGroup, count: int, distance: int) -> "tuple[int, Any, list[Any]]":
    data, received = group.data(count, group.rank), group.empty(count)
    operations = _operations(group, data, received, distance)
    source = (group.rank - distance) % group.size
    return source, received, group.torch.distributed.batch_isend_irecv(operations)


def _operations(group: TrialGroup, data: Any, received: Any, distance: int) -> "list[Any]":
    dist = group.torch.distributed
    ahead = group.members[(group.rank + distance) % group.size]
    behind = group.members[(group.rank - distance) % group.size]
    return [dist.P2POp(dist.isend, data, ahead, group.handle), dist.P2POp(dist.irecv, received, behind, group.handle)]


def send_and_receive(group: TrialGroup, size: int) -> None:
    """Blocking send and recv there and back between neighbours 0-1, 2-3, …; an odd last rank looks on."""
    count = max(1, size // ELEMENT_BYTES)
    partner = group.rank ^ 1
    if partner >= group.size:
        return
    dist, other = group.torch.distributed, group.members[partner]
    data, received = group.data(count, group.rank), group.empty(count)
    if group.rank < partner:
        dist.send(data, other, group=group.handle)
        dist.recv(received, other, group=group.handle)
    else:
        dist.recv(received, other, group=group.handle)
        dist.send(data, other, group=group.handle)
    group.check(received, group.data(count, partner), f"from rank {other}, element")


def _object_of(rank: int) -> "dict[str, Any]":
    return {"rank": rank, "text": "x" * (100 + rank)}


def _same(found: Any, expected: Any) -> None:
    if found != expected:
        raise Wrong(f"the objects are {str(found)[:120]}, must be {str(expected)[:120]}")


def all_gather_object(group: TrialGroup, size: int) -> None:
    """Gather an object of each rank, whose pickles differ in length; raise Wrong unless all have come whole."""
    found: list[Any] = [None] * group.size
    group.torch.distributed.all_gather_object(found, _object_of(group.rank), group=group.handle)
    _same(found, [_object_of(rank) for rank in range(group.size)])


def broadcast_object_list(group: TrialGroup, size: int) -> None:
    """Send the last rank's object to all; raise Wrong unless it has come whole."""
    root = group.size - 1
    found: list[Any] = [_object_of(root) if group.rank == root else None]
    group.torch.distributed.broadcast_object_list(found, group.members[root], group=group.handle, device=group.device)
    _same(found, [_object_of(root)])


def scatter_object_list(group: TrialGroup, size: int) -> None:
    """Send each rank its object from rank 0; raise Wrong unless this one has its own."""
    found: list[Any] = [None]
    objects = [_object_of(rank) for rank in range(group.size)] if group.rank == 0 else None
    group.torch.distributed.scatter_object_list(found, objects, group.members[0], group=group.handle)
    _same(found, [_object_of(group.rank)])


OBJECT_COLLECTIVES = (
    ("all_gather_object", all_gather_object),
    ("broadcast_object_list", broadcast_object_list),
    ("scatter_object_list", scatter_object_list),
)
