"""The counterfactual: let these ranks enter what the others wait in, and see whether the recorded waits end."""

from collections.abc import Iterable

from stallwatch.diagnosis.story import Story
from stallwatch.diagnosis.waits import Point


def resolves(story: Story, culprits: Iterable[int]) -> bool:
    """Given ranks that are supposed to be the cause, return True when every wait ends once they enter.

    A point opens when all that it lacks have entered: culprits at once, waiting ranks when their own wait has ended.
    """
    if not story.graph.waits:
        return False
    released = {(rank, None) for rank in culprits}
    lanes: set[tuple[int, int]] = set()
    ranks = {rank for rank, _ in released}
    waits = {(wait.rank, wait.lane): wait for wait in story.graph.waits}
    lacking: dict[Point, set[tuple[int, int]]] = {}
    users: dict[tuple[int, int], list[Point]] = {}
    for point, blockers in story.graph.blockers.items():
        open_ = {(b.rank, b.lane) for b in blockers if b.rank not in ranks}
        if story.graph.unknown[point]:
            return False
        lacking[point] = open_
        for node in open_:
            users.setdefault(node, []).append(point)
    at: dict[Point, list[tuple[int, int]]] = {}
    for node, wait in waits.items():
        at.setdefault(wait.point, []).append(node)
    freed_by = {point for point, blockers in story.graph.blockers.items() if blockers and not lacking[point]}
    ready = sorted(freed_by)
    while ready:
        point = ready.pop()
        for node in at.get(point, ()):
            if node in lanes:
                continue
            lanes.add(node)
            for other in users.get(node, ()):
                lacking[other].discard(node)
                if not lacking[other]:
                    ready.append(other)
    return lanes >= {node for node, wait in waits.items() if wait.rank not in ranks}
