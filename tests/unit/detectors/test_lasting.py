"""Whether what windows show of slow ranks is a state of theirs."""

import random

import pytest

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.counter_samples import CounterSample, PeerRank
from stallwatch.detectors.lasting import goes_on, has_lasted, is_by_design, is_from_start, is_over
from stallwatch.detectors.looks import LOOK_NS, Looks, StepLook
from stallwatch.detectors.waiting import Least


def member(rank: int, *, steps: int) -> PeerRank:
    samples = tuple(CounterSample(at, at * SECOND_NS, at * steps, 10, 10) for at in range(8))
    return PeerRank(rank, 100 + rank, samples=samples)


def test_a_rank_that_no_longer_steps_beside_others_that_do_is_compared_with_nobody() -> None:
    looks = tuple(StepLook(at * SECOND_NS, 4, (3, 3, 3, 0), (3, 3, 3, 0), steps=(at,) * 4) for at in range(40))
    least = Least((3,), 9.0, 24, 0, 0.0, 0.75)
    stepping = Looks(tuple(member(rank, steps=1) for rank in range(4)), looks=looks, count=40)
    assert not is_by_design(stepping, least)
    shadowing = Looks((*stepping.members[:3], member(3, steps=0)), looks=looks, count=40)
    assert is_by_design(shadowing, least)


def test_one_host_that_steps_alone_for_seconds_is_compared_with_nobody() -> None:
    """Who runs ahead of its device steps twice while the others stand: that ended the detector's tick."""
    looks = tuple(StepLook(at * SECOND_NS, 4, (3, 3, 3, 0), (3, 3, 3, 0), steps=(at,) * 4) for at in range(60))
    alone = Looks((*(member(rank, steps=0) for rank in range(3)), member(3, steps=1)), looks=looks, count=60)
    least = Least((3,), 9.0, 12, 0, 0.0, 0.75)
    assert is_by_design(alone, least)
    assert not has_lasted(alone, least, 12 * SECOND_NS)


@pytest.mark.parametrize(("saves", "by_design"), [(0.025, True), (0.2, False)])
def test_a_rank_that_saves_now_and_then_is_known_among_steps_that_vary_much(saves: float, by_design: bool) -> None:
    """Of steps of 0.07 s some take three times as long by chance, as long as one in which rank 0 saves; a look sees one
    of three steps, the longer the likelier."""
    draw, moments, now, seen, long_ns = random.Random(5), [], 0.0, 0.0, [70_000_000] * 3
    for step in range(6000):
        last = draw.randrange(4)
        seconds = 0.06 if draw.random() > 0.06 else 0.2
        if draw.random() < saves:
            last, seconds = 0, draw.choice((0.15, 0.2, 0.3))
        long_ns = [*long_ns[-2:], int(seconds * SECOND_NS)]
        now += seconds
        while seen < now:
            # They stand waiting for the last of them in most of a long step, in some of a short one.
            waits = seconds > 0.1 or draw.random() < 0.4
            waited = tuple(int(waits and rank != last) for rank in range(4))
            times = ((max(long_ns),) * 4, (long_ns[-1],) * 4)
            moments.append(StepLook(int(seen * SECOND_NS), 1, waited, waited, waited, (step,) * 4, *times))
            seen += LOOK_NS / SECOND_NS
    looks = Looks(tuple(member(rank, steps=1) for rank in range(4)), looks=tuple(moments[-768:]), count=768)
    columns = looks.columns(768)
    share, peers = (sum(waited for _, waited in column) / 768 for column in columns[:2])
    least = Least((0,), 20.0, 768, 0, share, peers)
    assert peers - share > 0.05
    assert is_by_design(looks, least) == by_design


CALM, LATE, OTHER_LATE = (0, 0, 0, 0), (2, 0, 2, 2), (0, 2, 2, 2)


def looked(*parts: tuple[int, tuple[int, ...]], count: int | None = None) -> Looks:
    """So many looks, one a second, in which the ranks wait in so many of four moments."""
    waits = [waited for many, waited in parts for _ in range(many)]
    looks = tuple(StepLook(at * SECOND_NS, 4, one, one, steps=(at,) * 4) for at, one in enumerate(waits))
    return Looks(tuple(member(rank, steps=1) for rank in range(4)), looks=looks, count=count or len(looks))


def least(looks: int) -> Least:
    """Rank 1 waits for half of a step less than its peers."""
    return Least((1,), 20.0, looks, 0, 0.0, 0.5)


def lasts(seconds: float, *parts: tuple[int, tuple[int, ...]]) -> bool:
    return has_lasted(looked(*parts), least(10), int(seconds * SECOND_NS))


def test_what_lasts_for_twenty_seconds_is_a_state_and_what_cost_five_in_less_is_where_it_is_new() -> None:
    assert lasts(20.0, (10, LATE))
    assert not lasts(19.9, (10, LATE)), "nothing was seen before"
    new = ((40, CALM), (10, LATE))
    assert lasts(10.0, *new)
    assert not lasts(9.9, *new), "it has cost less"
    assert not lasts(10.0, (29, CALM), (10, LATE)), "seen without it for less than three times as long"
    assert not lasts(10.0, (15, CALM), (10, OTHER_LATE), (15, CALM), (10, LATE)), "another rank had its turn"
    costly = Least((1,), 20.0, 10, 0, 0.0, 1.0)
    assert not has_lasted(looked((40, CALM), (10, (4, 0, 4, 4))), costly, 7 * SECOND_NS), "no seven seconds are a state"
    assert has_lasted(looked((40, CALM), (10, (4, 0, 4, 4))), costly, 8 * SECOND_NS)


def test_it_goes_on_where_the_last_seconds_show_half_of_it() -> None:
    assert goes_on(looked((40, LATE)), least(30))
    assert goes_on(looked((32, LATE), (8, (1, 0, 1, 1))), least(30))
    assert not goes_on(looked((30, LATE), (10, CALM)), least(30))
    waits_itself = Least((1,), 20.0, 30, 0, 0.25, 0.75)
    assert goes_on(looked((32, (3, 1, 3, 3)), (8, (2, 1, 2, 2))), waits_itself)


def test_it_is_from_the_start_where_all_looks_show_it_and_they_are_since_the_first_steps() -> None:
    assert is_from_start(looked((40, LATE)), 32, least(20))
    assert not is_from_start(looked((40, LATE)), 33, least(20)), "how it began nobody saw"
    assert not is_from_start(looked((20, CALM), (20, LATE)), 0, least(20))
    assert is_from_start(looked((23, LATE)), 0, least(20)), "three looks say nothing else"
    assert not is_from_start(looked((23, LATE), count=36), 0, least(20)), "those that say so are not kept"
    assert is_from_start(looked((23, LATE), count=35), 0, least(20))


@pytest.mark.parametrize(
    ("left", "error", "over"),
    [
        (0.0, 0.01, True),
        (0.04, 0.01, True),
        (0.07, 0.01, False),  # a third of it is left, surely
        (0.04, 0.033, True),  # steps vary much: it is surely less than half, and maybe nothing
        (0.06, 0.033, False),
        (0.01, 0.06, False),  # nobody knows
    ],
)
def test_it_is_over_when_surely_little_is_left_or_nothing_surely_and_less_than_half(
    left: float, error: float, over: bool
) -> None:
    """Of +30 % in steps that vary by 30 % the end was seen two minutes late: chance alone leaves a third."""
    assert is_over(left, error, 0.184, 0.03) == over
