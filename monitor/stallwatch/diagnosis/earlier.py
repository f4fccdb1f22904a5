"""What the looks before the last one say of operations that are unfinished now."""

from collections.abc import Iterable
from typing import NamedTuple

from stallwatch.diagnosis.lanes import Lanes
from stallwatch.diagnosis.nodes import Node

Key = tuple[int, tuple[int, int]]  # group id and the numbers of a node in it


class Before(NamedTuple):
    pending: set[Key]  # at any earlier look
    first: set[Key]  # of each lane, at the look before this one
    all: set[Key]  # that were recorded at any earlier look


def first_of_lanes(nodes: Iterable[Node], lanes: Lanes) -> set[Key]:
    """Given a look's nodes, return the first of each lane that had been issued and had not finished."""
    first: dict[int, Node] = {}
    for node in nodes:
        if node.done or not node.launched:
            continue
        lane = lanes.of(node.first)
        known = first.get(lane)
        if known is None or _place(node) < _place(known):
            first[lane] = node
    return {(node.pg_id, node.key) for node in first.values()}


def _place(node: Node) -> tuple[int, int]:
    return node.first.created_ns or 0, node.record
