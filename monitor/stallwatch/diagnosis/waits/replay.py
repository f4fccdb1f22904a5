"""The counterfactual: let these ranks enter what the others wait in, and see whether the recorded waits end."""

from collections.abc import Iterable

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.waits.graph import Point

_Node = tuple[int, int]  # (rank, lane)


def resolves(story: Story, culprits: Iterable[int]) -> bool:
    """Given ranks that are supposed to be the cause, return True when every wait ends once they enter.

    A point opens when all that it lacks have entered: culprits at once, waiting ranks when their own wait has ended.
    """
    graph = story.graph
    entered = set(culprits)
    if not graph.waits or any(graph.unknown.values()):
        return False
    lacking: dict[Point, set[_Node]] = {}
    awaited_at: dict[_Node, list[Point]] = {}
    for point, blockers in graph.blockers.items():
        lacking[point] = {(blocker.rank, blocker.lane) for blocker in blockers if blocker.rank not in entered}
        for node in lacking[point]:
            awaited_at.setdefault(node, []).append(point)
    standing: dict[Point, list[_Node]] = {}
    for wait in graph.waits:
        standing.setdefault(wait.point, []).append((wait.rank, wait.lane))
    # A point that lacked nobody from the start does not open by anybody's entering.
    opened = sorted(point for point, blockers in graph.blockers.items() if blockers and not lacking[point])
    moved: set[_Node] = set()
    while opened:
        for node in standing.get(opened.pop(), ()):
            if node in moved:
                continue
            moved.add(node)
            for point in awaited_at.get(node, ()):
                lacking[point].discard(node)
                if not lacking[point]:
                    opened.append(point)
    return all((wait.rank, wait.lane) in moved for wait in graph.waits if wait.rank not in entered)
