"""Stacks of all ranks merged into one prefix tree by rank ranges, as LLNL STAT does: the outlier is the story."""

from collections.abc import Mapping, Sequence

from stallwatch.model.evidence import CodeFrame
from stallwatch.model.verdict import StackNode


def merge(stacks: Mapping[int, Sequence[CodeFrame]]) -> StackNode | None:
    """Given one stack per rank, innermost frame first, return their prefix tree, or None when there is no stack."""
    return None
