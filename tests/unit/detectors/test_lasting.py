"""Whether what windows show of slow ranks is a state of theirs."""

import random

import pytest

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.lasting import is_by_design
from stallwatch.detectors.looks import LOOK_NS, CounterSample, Looks, PeerRank, StepLook
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
