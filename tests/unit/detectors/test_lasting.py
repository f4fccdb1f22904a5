"""Whether what windows show of slow ranks is a state of theirs."""

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.lasting import is_by_design
from stallwatch.detectors.looks import CounterSample, Looks, PeerRank, StepLook
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
