"""Ranks as people write them: "0-1,3-7"."""

from collections.abc import Iterable


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


def _part(start: int, end: int) -> str:
    return str(start) if start == end else f"{start}-{end}"
