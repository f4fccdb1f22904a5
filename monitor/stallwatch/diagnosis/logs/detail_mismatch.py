"""torch's DETAIL wrapper, rank by rank: each rank prints itself and one that differs; what differs, and what to do."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from stallwatch.diagnosis.logs.blame import operation_name
from stallwatch.diagnosis.logs.consequence import LoggedFailure
from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.formats.rank_ranges import named_ranks
from stallwatch.model.evidence import SideOfMismatch
from stallwatch.model.verdict import Mismatch

Sides = Mapping[int, SideOfMismatch]


def by_rank(told: Iterable[LoggedFailure]) -> dict[int, SideOfMismatch]:
    """Given the wrapper's lines, return what each rank was in; the lowest number that it is said to be in."""
    sides: dict[int, SideOfMismatch] = {}
    for one in told:
        for side in one.event.sides:
            known = sides.get(side.rank)
            if known is None or (side.seq or 0) < (known.seq or 0):
                sides[side.rank] = side
    return sides


def minority(sides: Sides) -> tuple[int, ...]:
    """The few that differ from most; nobody where there is no clear majority."""
    counts = Counter(_call(side) for side in sides.values())
    if not counts:
        return ()
    call, most = counts.most_common(1)[0]
    others = tuple(sorted(rank for rank, side in sides.items() if _call(side) != call))
    return others if len(sides) > 2 and 3 * (len(sides) - most) <= len(sides) else ()


def difference(sides: Sides) -> Mismatch | None:
    """What differs: the number of calls, else the operation, the size or the data type. Under different numbers ranks
    stand at different calls of the program, which may well be of other operations and shapes."""
    calls = [call for call, _ in Counter(_call(side) for side in sides.values()).most_common(2)]
    if len(calls) < 2:
        return None
    expected, found = (next(side for side in sides.values() if _call(side) == call) for call in calls)
    if expected.seq is not None and found.seq is not None and expected.seq != found.seq:
        return Mismatch("count", f"call number {expected.seq}", f"call number {found.seq}")
    if expected.operation != found.operation:
        return Mismatch("op", operation_name(expected.operation), operation_name(found.operation))
    if expected.shape != found.shape:
        return Mismatch("size", f"shape {expected.shape or 'unknown'}", f"shape {found.shape or 'unknown'}")
    return Mismatch("dtype", expected.dtype or "unknown", found.dtype or "unknown")


def behind(sides: Sides) -> str:
    """Who is how many collectives behind whom; "" where all are at one number or none is printed."""
    numbers = {rank: side.seq for rank, side in sides.items() if side.seq is not None}
    if len(set(numbers.values())) < 2:
        return ""
    low, high = min(numbers.values()), max(numbers.values())
    late, early = (sorted(rank for rank, number in numbers.items() if number == of) for of in (low, high))
    verb = "is" if len(late) == 1 else "are"
    what = "collective" if high - low == 1 else "collectives"
    numbered = f"(sequence numbers {low} and {high})"
    return f"{named_ranks(late)} {verb} {high - low} {what} behind {named_ranks(early)} {numbered}"


def parts(sides: Sides) -> tuple[tuple[tuple[int, ...], str, str], ...]:
    """Who called what: ranks, the call, and no place, for the wrapper tells none."""
    one_number = len({side.seq for side in sides.values()}) == 1
    groups: dict[str, list[int]] = {}
    for rank, side in sorted(sides.items()):
        groups.setdefault(describe(side, numbered=not one_number), []).append(rank)
    return tuple((tuple(ranks), what, "") for what, ranks in groups.items())


def describe(side: SideOfMismatch, *, numbered: bool = True) -> str:
    """One side of a mismatch in words: operation, shape, type and, if asked, its number."""
    shape = f" of shape {side.shape}" if side.shape else ""
    dtype = f" ({side.dtype})" if side.dtype else ""
    number = f" number {side.seq}" if side.seq is not None and numbered else ""
    return f"{operation_name(side.operation) or 'a collective'}{shape}{dtype}{number}"


def _call(side: SideOfMismatch) -> tuple[str, str, str, int | None]:
    return side.operation, side.shape, side.dtype, side.seq


# Ranks whose calls did not fit together: what it means and what to do, by what differs.


_WHY: Final = {
    "op": "Ranks called different collectives at the same place.",
    "size": "Ranks called the same collective with tensors of different shapes.",
    "dtype": "Ranks called the same collective with tensors of different data types or devices.",
    "count": "The sequence numbers differ: one side is a collective (or more) behind the other, which it skipped or "
    "the other made extra. Operations and shapes that differ follow from that.",
}
_REMEDY: Final = {
    "op": "make every rank call the same collectives in the same order; look for `if rank == 0:` around one of them, "
    "and for a branch on its data",
    "size": "print(rank, tensor.shape) before that call; pad or cut to one shape, or gather the sizes first: a last "
    "batch, a sequence or a bucket whose length differs by rank",
    "dtype": "print(rank, tensor.dtype, tensor.device) before that call; look for autocast, a cast or a default that "
    "only some ranks take",
    "count": "look before this call for a collective that one side skipped or made extra: one under `if rank == 0:`, "
    "in an except or an early return, or in a loop, an accumulation or an evaluation that runs another number of times "
    "on some ranks (uneven data)",
}


def mismatch_words(differs: Mismatch) -> Words:
    """Given what differs, return what it means and what to do."""
    return Words(_WHY[differs.kind], _REMEDY[differs.kind])
