"""Who waits least, by columns of (looks at a step, of these waiting)."""

import math
import random
from collections.abc import Sequence
from statistics import stdev

import pytest

from stallwatch.detectors.spells import looks_of_a_draw
from stallwatch.detectors.waiting import (
    Column,
    Least,
    Peers,
    becomes_more,
    cost,
    difference,
    differences,
    divergence,
    is_due,
    leads,
    lost,
    was_so,
    who_waits_least,
)


def column(waited: int, looks: int = 20, ticks: int = 8) -> Column:
    return ((ticks, waited),) * looks


def columns(*waited: int, looks: int = 20) -> list[tuple[int, Column]]:
    return [(rank, column(one, looks)) for rank, one in enumerate(waited)]


def least_of(
    of: list[tuple[int, Column]],
    before: Sequence[tuple[int, Column]] = (),
    since_ns: int = 0,
    at_most: int | None = None,
) -> Least | None:
    """Of all their looks, with a minimum share of a tenth."""
    return who_waits_least(Peers(of), len(of[0][1]), 0.1, lambda: before, since_ns, at_most)


def test_the_rank_that_others_wait_for_and_no_other() -> None:
    least = least_of(columns(6, 6, 0, 6), since_ns=7)
    assert least is not None
    assert (least.ranks, least.looks, least.since_ns, least.share, least.peers_share) == ((2,), 20, 7, 0.0, 0.75)
    assert least_of(columns(6, 0, 0, 6, 6)).ranks == (1, 2)  # type: ignore[union-attr]
    assert least_of(columns(6, 0, 0, 6, 6), at_most=1) is None
    assert least_of(columns(6)) is None, "alone"
    assert least_of(columns(6, 6, 6, 6)) is None
    assert least_of(columns(6, 6, 0, 6, looks=4)) is None, "four looks may be chance"


def test_a_difference_that_is_gone_in_a_part_of_the_looks_is_no_state() -> None:
    came_and_went: Column = ((8, 0),) * 15 + ((8, 6),) * 5
    assert least_of([*columns(6, 6, 6), (3, came_and_went)]) is None
    hardly_waits: Column = ((8, 2),) * 15 + ((8, 8),) * 5
    assert least_of([*columns(8, 8, 8), (3, hardly_waits)]) is None
    lasting: Column = ((8, 0),) * 15 + ((8, 3),) * 5
    assert least_of([*columns(6, 6, 6), (3, lasting)]) is not None


def test_half_of_the_ranks_are_named_only_where_they_were_as_fast_before() -> None:
    halves = columns(0, 2, 2, 0)
    assert least_of(halves) is None, "two stages of something"
    assert least_of(halves, before=columns(2, 2, 2, 2)).ranks == (0, 3)  # type: ignore[union-attr]
    assert least_of(halves, before=columns(2, 2, 2, 2, looks=15)) is None, "of too few looks"
    assert least_of(halves, before=halves) is None, "they were always so"


def test_the_difference_with_its_error() -> None:
    assert difference(columns(6, 6, 0, 6), (2,)) == (0.75, 0.0)
    assert difference(columns(0, 8), (0,)) == (1.0, 0.0)
    one = difference(columns(6, 6, 0, 6, looks=1), (2,))
    assert one == (0.75, 0.75), "one look is as unsure as it is large"
    turns: list[tuple[int, Column]] = [(0, ((8, 4), (8, 8))), (1, ((8, 0), (8, 0)))]
    middle, error = difference(turns, (1,))
    assert middle == 0.75
    assert error == pytest.approx(0.25)


@pytest.mark.parametrize("ranks", [(), (0, 1, 2, 3), (9,)])
def test_without_somebody_on_both_sides_there_is_no_difference(ranks: tuple[int, ...]) -> None:
    assert difference(columns(6, 6, 0, 6), ranks) == (0.0, 0.0)
    assert difference(columns(6, 6, 0, 6, looks=0), (2,)) == (0.0, 0.0)


def test_what_ranks_cost_is_what_the_last_of_the_others_waits_for_them() -> None:
    """Rank 3 comes late now and then, too: what the job waits for it is no cost of rank 2."""
    looks = [(6, 6, 0, 2), (6, 6, 0, 6), (6, 6, 1, 0), (6, 6, 0, 4)]
    mixed = [(rank, tuple((10, waited[rank]) for waited in looks)) for rank in range(4)]
    share, error = lost(mixed, (2,), [True] * 4) or (None, None)
    assert share == pytest.approx((0.2 + 0.6 + 0.0 + 0.4) / 4)
    assert error is not None
    assert error > 0
    assert difference(mixed, (2,))[0] > 0.55
    assert lost(mixed, (2,), [True, True, False, False]) is None, "of several moments they cannot be compared"
    assert lost(mixed, (0, 1, 2, 3), [True] * 4) is None


def test_what_a_job_waits_for_each_of_the_others_in_its_turn_is_no_cost_of_one() -> None:
    """Of steps that vary somebody is last in each: of equal ranks each as often as any other."""
    turns = [tuple(0 if rank == last else 6 for rank in range(4)) for last in range(4)]

    def share(*more: tuple[int, ...]) -> float:
        looks = [*turns, *turns, *more]
        columns = [(rank, tuple((10, waited[rank]) for waited in looks)) for rank in range(4)]
        found = lost(columns, (2,), [True] * len(looks))
        assert found is not None
        return found[0]

    assert share() == 0.0
    early = [(4, 4, 0, 2), (0, 6, 6, 6), (6, 2, 6, 6), (6, 6, 6, 2)]
    of = [(rank, tuple((10, waited[rank]) for waited in early)) for rank in range(4)]
    late = lost(of, (2,), [True] * 4)
    assert late is not None
    assert late[0] == 0.0, "each of the others, by 4 of their median"
    assert share((6, 6, 0, 6), (6, 6, 0, 6)) == pytest.approx((0.6 * 4 - 0.6 * 2) / 10)
    pairs = [(0, ((10, 0), (10, 6), (10, 0))), (1, ((10, 6), (10, 0), (10, 6)))]
    two = lost(pairs, (0,), [True] * 3)
    assert two is not None
    assert two[0] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("waits", "more"),
    [([4] * 64, False), ([1] * 8 + [4] * 56, False), ([place // 12 for place in range(64)], True), ([1] * 30, False)],
    ids=["steady", "it was found early", "by little all the time", "few looks"],
)
def test_what_a_rank_costs_becomes_more_or_not(waits: list[int], *, more: bool) -> None:
    draw = random.Random(1)
    others = [tuple((8, max(0, wait + draw.choice((-1, 0, 1)))) for wait in waits) for _ in range(3)]
    assert becomes_more([*enumerate(others), (3, column(0, looks=len(waits)))], (3,)) is more


def test_whether_it_was_so_before() -> None:
    now = Least((2,), 30.0, 20, 0, share=0.0, peers_share=0.75)
    assert was_so(columns(6, 6, 0, 6, looks=16), now) is True
    assert was_so(columns(6, 6, 3, 6, looks=16), now) is True, "half of it"
    assert was_so(columns(6, 6, 4, 6, looks=16), now) is False
    assert was_so(columns(6, 6, 0, 6, looks=15), now) is None
    assert was_so(columns(6, 6, 6, 6, looks=4), now) is False, "some looks, if they are so clear"
    assert was_so(columns(6, 6, 6, 6, looks=3), now) is None
    assert was_so([], now) is None
    waits_itself = Least((2,), 30.0, 20, 0, share=0.25, peers_share=0.75)
    assert was_so(columns(6, 6, 4, 6, looks=16), waits_itself) is True


def test_what_it_costs_has_an_interval_and_needs_a_step() -> None:
    slowness = cost(0.3, 0.1, 2.0, 20, 60.0)
    assert slowness is not None
    assert (slowness.cost_seconds, slowness.step_seconds, slowness.steps, slowness.seconds) == (0.6, 2.0, 20, 60.0)
    assert [slowness.low_seconds, slowness.high_seconds] == pytest.approx([0.208, 0.992])
    unsure = cost(0.1, 0.9, 2.0, 20, 60.0)
    assert unsure is not None
    assert (unsure.low_seconds, unsure.high_seconds) == (0.0, 2.0), "no less than nothing, no more than the step"
    assert cost(-0.1, 0.0, 2.0, 20, 60.0).cost_seconds == 0.0  # type: ignore[union-attr]
    assert cost(0.3, 0.1, 0.0, 20, 60.0) is None


def test_leads_need_two_and_looks() -> None:
    assert leads([]) == leads(columns(6)) == leads(columns(6, 6, looks=0)) == {}
    assert leads(columns(6, 6, 0)) == {0: -0.375, 1: -0.375, 2: 0.75}
    assert leads(columns(6, 0, looks=1)) == {0: -0.75, 1: 0.75}


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_a_lead_is_how_much_less_a_rank_waits_than_the_median_of_the_others_look_by_look(ranks: int) -> None:
    draw = random.Random(ranks)
    of = [(rank, tuple((8, draw.randint(0, 4)) for _ in range(50))) for rank in range(ranks)]
    assert leads(of) == pytest.approx({rank: difference(of, (rank,))[0] for rank in range(ranks)})


def test_a_long_window_is_judged_when_a_sixth_of_it_is_new() -> None:
    assert [is_due(60, before, before + 1) for before in (8, 9, 10, 19)] == [False, True, False, True]
    assert is_due(4, 3, 4), "a short one at each look"
    assert is_due(4, 4, 5)


def test_divergence_is_none_of_equals_and_finite_at_the_ends() -> None:
    assert divergence(0.3, 0.3) == 0.0
    assert divergence(0.5, 0.25) == pytest.approx(math.log(2) / 2 + math.log(2 / 3) / 2)
    assert divergence(1.0, 0.5) == pytest.approx(math.log(2), abs=1e-6)
    assert 19 < divergence(1.0, 0.0) < 21


def nats_of(looks: Sequence[tuple[int, ...]], minimum_share: float = 0.1, ticks: int = 8) -> float:
    """The evidence for rank 0, whose every look is late, so that one look is one draw."""
    of = [(rank, tuple((ticks, waited[rank]) for waited in looks)) for rank in range(len(looks[0]))]
    least = who_waits_least(Peers(of), len(looks), minimum_share, list)
    assert least is not None
    assert least.ranks == (0,)
    return least.nats


def test_evidence_is_how_often_it_waits_least_against_what_chance_makes_of_looks_that_differ() -> None:
    """Chernoff: of so many looks, one in four by chance of four ranks."""
    late, alike, two_late, other_late = (0, 6, 6, 6), (6, 6, 6, 6), (0, 0, 6, 6), (6, 0, 6, 6)
    assert nats_of([late] * 20) == pytest.approx(20 * math.log(4), rel=1e-6)
    assert nats_of([late] * 16 + [two_late] * 4) == pytest.approx(20 * math.log(20 / 6), rel=1e-6)
    mixed = nats_of(([late] * 4 + [other_late]) * 6)
    assert mixed == pytest.approx(30 * divergence(24 / 30, 30 / 4 / 30) / _draw(([1] * 4 + [0]) * 6), rel=1e-6)
    assert nats_of(([late] * 4 + [alike]) * 6) == pytest.approx(
        24 * math.log(4) / _draw(([1] * 4 + [0]) * 6), rel=1e-6
    ), "looks in which all are alike say nothing"
    small = (5, 6, 6, 6)
    assert nats_of(([late] * 4 + [small]) * 6, 0.3) < nats_of(([late] * 4 + [small]) * 6, 0.1), "nor small ones"


def _draw(within: list[int]) -> float:
    return looks_of_a_draw([0.75 * one for one in within])


@pytest.mark.parametrize("seed", range(5))
def test_what_windows_of_peers_say_is_what_their_columns_say(seed: int) -> None:
    """However they are asked, a short one first or a long one."""
    draw = random.Random(seed)
    of = [(rank, tuple((8, draw.randint(0, 8)) for _ in range(40))) for rank in range(4)]
    peers = Peers(of)
    for window in (12, 30, 12, 40):
        last = [(rank, column[-window:]) for rank, column in of]
        others = [column for rank, column in last if rank != 1]
        assert peers.less(1, (0, 2, 3), window) == pytest.approx(differences(last, (1,)))
        looks = [[waited for _, waited in look] for look in zip(*others, strict=True)]
        assert peers.extremes((0, 2, 3), window) == [(min(one), max(one), one.count(min(one))) for one in looks]
        assert peers.column(1, window) == dict(last)[1]
        shares = {rank: sum(waited for _, waited in column) / 8 / window for rank, column in last}
        assert peers.shares(window) == pytest.approx(shares)


def test_the_error_of_what_ranks_cost_is_by_how_much_moments_differ() -> None:
    looks = [(4, 4, 0), (0, 0, 0), (4, 4, 0), (0, 0, 0)]
    of = [(rank, tuple((8, waited[rank]) for waited in looks)) for rank in range(3)]
    found = lost(of, (2,), [True] * 4)
    assert found == pytest.approx((0.25, math.sqrt(4 * 2**2) / 32))
    assert lost([(rank, column[:1]) for rank, column in of], (2,), [True]) == (0.5, 0.5), "one look"
    assert lost([(rank, column[:2]) for rank, column in of], (2,), [True] * 2) == (0.25, math.sqrt(2 * 2**2) / 16)
    assert lost(of, (2,), [True, True, True, False]) is not None


def test_a_few_earlier_looks_must_be_clear_beyond_their_error() -> None:
    now = Least((2,), 30.0, 20, 0, share=0.0, peers_share=0.75)  # half of it: 0.375
    waits = [0, 4, 0, 4, 0, 4]
    of = [(rank, tuple((8, wait if rank != 2 else 0) for wait in waits)) for rank in range(4)]
    each = differences(of, (2,))
    assert sum(each) / 6 + stdev(each) / math.sqrt(6) < 0.375
    assert was_so(of, now) is False
    vague = [(rank, tuple((8, wait if rank != 2 else 0) for wait in (0, 5, 0, 5, 0, 5))) for rank in range(4)]
    assert was_so(vague, now) is None, "0.31, give or take 0.14"


def test_a_cost_becomes_more_where_the_later_half_is_beyond_chance_and_half_as_much_again() -> None:
    def more(earlier: list[int], later: list[int]) -> bool:
        waits = (earlier * 32)[:32] + (later * 32)[:32]
        return becomes_more([(0, tuple((8, wait) for wait in waits)), (1, column(0, looks=64))], (1,))

    assert more([2], [4])
    assert not more([2], [3]), "half as much again is not yet more"
    assert more([0], [1])
    assert not more([0, 2, 0, 2], [0, 8, 0, 0]), "one that varies"
    assert not more([4], [2])
    assert not becomes_more([(0, ((8, 0),) * 15 + ((8, 8),) * 15), (1, column(0, looks=30))], (1,)), "of few looks"
