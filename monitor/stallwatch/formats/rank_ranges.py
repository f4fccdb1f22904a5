"""Ranks as people write them: "0-1,3-7", "rank 3"."""

from collections.abc import Iterable, Sized


def rank_ranges(ranks: Iterable[int]) -> str:
    """Given ranks in any order, return their ranges; no ranks give ""."""
    parts: list[str] = []
    start = end = None
    for rank in sorted(set(ranks)):
        if start is None or end is None:
            start = end = rank
        elif rank == end + 1:
            end = rank
        else:
            parts.append(_part(start, end))
            start = end = rank
    if start is not None and end is not None:
        parts.append(_part(start, end))
    return ",".join(parts)


def ranks_in(ranges: str) -> frozenset[int]:
    """The ranks of what `rank_ranges` has written."""
    found: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _part(start: int, end: int) -> str:
    return str(start) if start == end else f"{start}-{end}"


def named_ranks(ranks: Iterable[int]) -> str:
    """Ranks as a sentence names them: "rank 3", "ranks 0-2,5". At least one rank."""
    ordered = sorted(set(ranks))
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"ranks {rank_ranges(ordered)}"


def verb(ranks: Sized, of_one: str, of_many: str) -> str:
    """The verb of a sentence whose subject is `named_ranks` of these: "has" or "have"."""
    return of_one if len(ranks) == 1 else of_many
