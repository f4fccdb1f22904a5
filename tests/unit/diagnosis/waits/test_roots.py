"""Sinks of the graph of waits."""

import random
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.waits.graph import Blocker, Graph, Point, Strength, Wait
from stallwatch.diagnosis.waits.roots import Cycle, find_roots, goes_on, in_every_circle, is_shown, resolves
from stallwatch.model.summary import Pending


def _graph(edges: dict[int, list[Blocker]]) -> Graph:
    """Rank → whom it waits for, each in a point of its own."""
    waits = tuple(
        Wait(rank, 0, Point(rank, 1), Pending(record=0, lane=0, stream=0, call=0, seq=1), True) for rank in edges
    )
    blockers = {Point(rank, 1): tuple(targets) for rank, targets in edges.items()}
    return Graph(waits, blockers, dict.fromkeys(blockers, ()), (), (), {}, ())


def _on(*ranks: int, strength: Strength = Strength.RECORDED) -> list[Blocker]:
    return [Blocker(rank, 0, strength) for rank in ranks]


def test_a_chain_of_thousands_ends_at_one_rank_without_recursion() -> None:
    roots = find_roots(_graph({rank: _on(rank + 1) for rank in range(5_000)}))
    assert roots.absent == ((5_000, 0),)


def test_a_cycle_that_also_waits_for_somebody_absent_is_not_the_end() -> None:
    roots = find_roots(_graph({0: _on(1), 1: _on(0, 2)}))
    assert roots.absent == ((2, 0),)
    assert roots.cycles == ()


def test_a_cycle_that_also_waits_for_ranks_in_what_no_recorder_shows_is_a_deadlock_by_itself() -> None:
    graph = replace(_graph({0: _on(1), 1: _on(0, 2)}), unrecorded=(2,))
    assert [cycle.ranks for cycle in find_roots(graph).cycles] == [(0, 1)]


def test_a_cycle_that_waits_for_nobody_else_is() -> None:
    roots = find_roots(_graph({0: _on(1), 1: _on(0), 2: _on(0)}))
    assert [cycle.ranks for cycle in roots.cycles] == [(0, 1)]


def test_a_supposed_wait_counts_only_where_nothing_surer_is_known() -> None:
    supposed = _on(2, strength=Strength.SUPPOSED)
    assert find_roots(_graph({0: [*_on(1), *supposed]})).absent == ((1, 0),)
    assert find_roots(_graph({0: supposed})).absent == ((2, 0),)


def test_a_point_that_lacks_nobody_is_closed() -> None:
    assert find_roots(_graph({0: []})).closed == (Point(0, 1),)


def _shared(edges: dict[int, list[Blocker]]) -> list[tuple[int, ...]]:
    graph = _graph(edges)
    return [in_every_circle(graph, cycle) for cycle in find_roots(graph).cycles]


def test_who_is_in_every_cycle_of_a_deadlock_is_found_however_many_wait_in_it() -> None:
    star = {0: _on(*range(1, 9)), **{rank: _on(0) for rank in range(1, 9)}}
    assert _shared(star) == [(0,)]
    ring = {rank: _on((rank + 1) % 5) for rank in range(5)}
    assert _shared(ring) == [(0, 1, 2, 3, 4)]
    two_against_two = {0: _on(2, 3), 1: _on(2, 3), 2: _on(0, 1), 3: _on(0, 1)}
    assert _shared(two_against_two) == [()]


@pytest.mark.parametrize("seed", range(60))
def test_who_is_in_every_cycle_is_who_leaves_none_when_it_goes(seed: int) -> None:
    """Of drawn deadlocks."""
    draw = random.Random(seed)
    ranks = range(draw.randint(3, 8))
    edges = {rank: _on(*draw.sample([r for r in ranks if r != rank], draw.choice((1, 1, 1, 2)))) for rank in ranks}
    graph = _graph(edges)
    for cycle in find_roots(graph).cycles:
        waits_for = {rank: {b.rank for b in edges[rank]} & set(cycle.ranks) for rank in cycle.ranks}
        alone = [rank for rank in cycle.ranks if not _goes_round(waits_for, rank)]
        assert in_every_circle(graph, cycle) == tuple(alone)


def _goes_round(waits_for: dict[int, set[int]], without: int) -> bool:
    """Whether anybody waits for himself, by others than this one."""
    for start in waits_for.keys() - {without}:
        reached: set[int] = set()
        front = waits_for[start] - {without}
        while front:
            reached |= front
            front = {after for rank in front for after in waits_for[rank]} - reached - {without}
        if start in reached:
            return True
    return False


def test_a_ring_of_thousands_is_looked_through_once() -> None:
    ring = {rank: _on((rank + 1) % 3_000) for rank in range(3_000)}
    assert _shared(ring) == [tuple(range(3_000))]


def test_a_deadlock_beside_somebody_absent_is_an_end_of_its_own() -> None:
    roots = find_roots(_graph({0: _on(1), 1: _on(0), 2: _on(3)}))
    assert [cycle.ranks for cycle in roots.cycles] == [(0, 1)]
    assert roots.absent == ((3, 0),)


class _CaseOf:
    """What is asked of a case about one rank."""

    def __init__(self, *, moving: bool | None, inside: bool | None, advanced: bool, recorded: bool) -> None:
        self.summaries = {0: SimpleNamespace(advanced=(1,) if advanced else ())}
        self._activity, self._recorded = (
            SimpleNamespace(progress=SimpleNamespace(moving=moving), call=SimpleNamespace(in_collective=inside)),
            recorded,
        )

    def activity(self, rank: int) -> SimpleNamespace:
        return self._activity

    def recorded(self, rank: int) -> bool:
        return self._recorded


@pytest.mark.parametrize("advanced", [True, False])
@pytest.mark.parametrize("inside", [True, False, None])
@pytest.mark.parametrize("moving", [True, False, None])
def test_a_rank_goes_on_when_it_moves_or_its_calls_end_and_it_stands_in_the_next(
    moving: bool | None, inside: bool | None, advanced: bool
) -> None:
    """Calls that end, and a stack outside of them, may be its last ones."""
    case = _CaseOf(moving=moving, inside=inside, advanced=advanced, recorded=True)
    assert goes_on(cast("Case", case), 0) is (moving is True or (advanced and inside is True))
    unread = _CaseOf(moving=moving, inside=inside, advanced=advanced, recorded=False)
    assert goes_on(cast("Case", unread), 0) is (moving is True), "of a dump that broke off nothing is believed"


def test_waits_are_resolved_when_each_of_them_ends_once_the_culprits_enter() -> None:
    chain = _graph({0: _on(1), 1: _on(2)})
    assert resolves(chain, [2])
    assert not resolves(chain, [])
    assert not resolves(chain, [3])
    both = _graph({0: _on(1, 2), 1: _on(3)})
    assert not resolves(both, [3])
    assert resolves(both, [2, 3])
    assert resolves(_graph({0: _on(1), 1: _on(0)}), [0]), "what a culprit waits in itself does not count: it entered"


def test_nothing_is_resolved_where_nobody_waits_or_somebody_waits_for_nobody_or_little_is_known() -> None:
    assert not resolves(_graph({}), [1])
    assert not resolves(_graph({0: [], 2: _on(1)}), [1]), "nobody's entering opens what all have entered"
    known = _graph({0: _on(1)})
    assert not resolves(replace(known, unknown={Point(0, 1): (3,)}), [1])


def _lanes(edges: dict[tuple[int, int], list[tuple[int, int]]]) -> Graph:
    """(rank, lane) → whom it waits for, each in a point of its own."""
    points = {node: Point(*node) for node in edges}
    waits = tuple(
        Wait(*node, point, Pending(record=0, lane=node[1], stream=0, call=0, seq=1), True)
        for node, point in points.items()
    )
    blockers = {
        points[node]: tuple(Blocker(*to, Strength.RECORDED) for to in targets) for node, targets in edges.items()
    }
    return Graph(waits, blockers, dict.fromkeys(blockers, ()), (), (), {}, ())


@pytest.mark.parametrize(
    ("ways", "shared"),
    [
        ([(1, 0), (1, 1)], (0, 1)),  # by one of its threads or the other each way leads through rank 1
        ([(1, 0), (2, 0)], (0,)),
        ([(1, 0), (2, 0), (2, 1)], (0,)),
        ([(1, 0), (1, 1), (2, 0)], (0,)),
        ([(1, 0), (1, 1), (1, 2)], (0, 1)),
        ([(70, 0), (70, 1)], (0, 70)),
    ],
)
def test_threads_of_one_rank_lie_on_every_way_together(ways: list[tuple[int, int]], shared: tuple[int, ...]) -> None:
    graph = _lanes({(0, 0): ways, **{way: [(0, 0)] for way in ways}})
    (cycle,) = find_roots(graph).cycles
    assert in_every_circle(graph, cycle) == shared


def test_a_rank_that_waits_for_itself_is_the_smallest_circle_there_is() -> None:
    assert _shared({0: _on(0)}) == [(0,)]
    assert _shared({0: _on(0, 1), 1: _on(0)}) == [(0,)]
    assert _shared({0: _on(1), 1: _on(0), 2: _on(2, 0)}) == [(0, 1)]
    assert _shared({0: _on(0, 1), 1: _on(1, 0)}) == [()]
    graph = _lanes({(0, 0): [(1, 0), (1, 1)], (1, 0): [(0, 0), (1, 0)], (1, 1): [(0, 0)]})
    assert [in_every_circle(graph, cycle) for cycle in find_roots(graph).cycles] == [(1,)]


@pytest.mark.parametrize(
    ("edges", "shown"),
    [
        ({0: _on(1), 1: _on(0)}, True),
        ({0: _on(0)}, True),
        ({0: [*_on(1), *_on(2, strength=Strength.SUPPOSED)], 1: _on(0)}, True),
        ({0: _on(1, strength=Strength.SUPPOSED), 1: _on(0, strength=Strength.SUPPOSED)}, True),  # nobody else could
        ({0: _on(1, 2, strength=Strength.SUPPOSED), 1: _on(0)}, False),  # rank 2 may be the one that sends
        ({0: _on(1, strength=Strength.SUPPOSED), 1: _on(2)}, False),
    ],
)
def test_a_circle_is_shown_where_nobody_outside_of_it_can_end_its_waits(
    edges: dict[int, list[Blocker]], *, shown: bool
) -> None:
    graph = _graph(edges)
    ranks = sorted(edges)
    cycle = Cycle(tuple((rank, 0) for rank in ranks), tuple(Point(rank, 1) for rank in ranks))
    assert is_shown(graph, cycle) is shown


def test_a_rank_that_a_recorder_and_a_hook_show_to_be_awaited_is_one_end_of_waits() -> None:
    graph = replace(_graph({0: _on(2)}), peers={1: 2})
    assert find_roots(graph).absent == ((2, 0),)


def test_of_a_rank_that_only_its_hook_shows_to_wait_each_thread_does() -> None:
    assert find_roots(replace(_graph({}), peers={0: 1, 1: 0})).circles == ((0, 1),)
    awaited = replace(_lanes({(0, 0): [(1, 2)]}), peers={1: 2})
    assert find_roots(awaited).absent == ((2, 0),)
