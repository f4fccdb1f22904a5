"""Sends and receives as a recorder names them: between whom, and how many of each pair it holds."""

from collections.abc import Iterator

from stallwatch.diagnosis.recorder import signature
from stallwatch.model.evidence import Operation
from stallwatch.model.summary import ANY, PairCount, Transfer


class TransferCounts:
    """The sends and receives of one group so far, by their ends."""

    def __init__(self) -> None:
        self._done: dict[tuple[int, int], int] = {}
        self._pending: dict[tuple[int, int], int] = {}
        self._outgoing: dict[tuple[int, int], bool] = {}

    def add(self, entry: Operation, *, done: bool) -> Transfer:
        """Count one, and return it as the k-th of its ends."""
        ends = ends_in_name(entry.name)
        counts = self._done if done else self._pending
        counts[ends] = counts.get(ends, 0) + 1
        self._outgoing[ends] = "send" in entry.name
        ordinal = self._done.get(ends, 0) + self._pending.get(ends, 0)
        return Transfer(ends[0], ends[1], ordinal, self._outgoing[ends], signature.transferred(entry))

    def pairs(self, stream: int, whole: bool) -> Iterator[PairCount]:
        """Return the counts of each pair of ends, in their order."""
        for ends, outgoing in sorted(self._outgoing.items()):
            done, pending = self._done.get(ends, 0), self._pending.get(ends, 0)
            yield PairCount(stream, ends[0], ends[1], done, pending, whole, outgoing)


def ends_in_name(name: str) -> tuple[int, int]:
    """Given "send 0->1" or "recv 0<-1", return (source, destination) as ranks of the group; ANY for an end that is not
    told: "recv 0<-?" takes from whoever sends, and a hook on a process group writes "send" alone."""
    _, _, ends = name.partition(" ")
    for arrow, reverse in (("->", False), ("<-", True)):
        left, found, right = (part.strip() for part in ends.partition(arrow))
        if found:
            own, other = (int(part) if part.isdecimal() else ANY for part in (left, right))
            return (other, own) if reverse else (own, other)
    return ANY, ANY
