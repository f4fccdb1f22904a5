"""Ranks at a lock that their own thread, in a collective, most likely holds: who lacks there closes the circle."""

import pytest

from stallwatch.diagnosis.activity import read_activity
from stallwatch.diagnosis.analysis import analyze_job
from stallwatch.diagnosis.claim import Claim
from stallwatch.diagnosis.claims import behind_a_lock
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.evidence import CodeFrame
from tests.builders.job import SLEEPS, Call, Group, Rank, loop, world

STEPS = loop(world(4), 6)
AT_LOCK = (CodeFrame("Condition.wait", "/usr/lib/python3.11/threading.py", 327), *SLEEPS)
METRICS, LOSSES = Group("1", "metrics", (0, 1, 2, 3), 1), Group("2", "losses", (0, 1, 2, 3), 2)


def _named(groups: dict[int, Group], others: dict[int, Rank]) -> tuple[int, ...]:
    """Of each rank at the lock the group in which its second thread waits; the others as they are."""
    ranks = [
        Rank(rank, (*STEPS, Call(group, thread="2")), len(STEPS), frames=AT_LOCK, wchan="futex_do_wait", backend="gloo")
        for rank, group in groups.items()
    ]
    told = [rank.evidence() for rank in (*ranks, *others.values())]
    activities = {rank.rank: read_activity(rank) for rank in told}
    case = Case([reduce_rank(rank) for rank in told], activities, 4, (), {rank.rank: rank for rank in told}, 2)
    said = behind_a_lock.claim(analyze_job(case))
    return said.culprits if isinstance(said, Claim) else ()


WAITS = Rank(1, (*STEPS, STEPS[0]), len(STEPS), backend="gloo")


def test_who_waits_and_lacks_in_what_the_threads_stand_in_is_named() -> None:
    assert _named({0: METRICS, 2: METRICS, 3: METRICS}, {1: WAITS}) == (1,)


@pytest.mark.parametrize(
    ("groups", "others"),
    [
        ({0: METRICS, 2: METRICS, 3: LOSSES}, {1: WAITS}),  # two collectives, and no lock is both threads'
        ({0: METRICS, 2: METRICS, 3: METRICS}, {1: Rank(1, STEPS, frames=SLEEPS, backend="gloo")}),  # it will come
        ({0: METRICS, 2: METRICS}, {1: WAITS, 3: Rank(3, STEPS, frames=SLEEPS, backend="gloo")}),  # one at no lock
    ],
)
def test_nobody_is_where_something_else_may_end_it(groups: dict[int, Group], others: dict[int, Rank]) -> None:
    assert _named(groups, others) == ()
