"""Ranks that may wait in a message that their back end does not record: nobody is accused of it for certain."""

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame
from tests.builders.job import SLEEPS, Rank, evidence, loop, world

W4 = world(4)
STEPS = loop(W4, 6)
NATIVE = (CodeFrame("exchange", "/srv/job/ring.py", 40), *SLEEPS[1:])  # a call into C shows no frame of its own


def _job(*absent: int) -> tuple[str, tuple[int, ...], str]:
    ranks = [
        Rank(rank, STEPS[:-1], backend="gloo", frames=NATIVE, wchan="futex_do_wait")
        if rank in absent
        else Rank(rank, STEPS, len(STEPS) - 1, backend="gloo")
        for rank in range(4)
    ]
    first = judge(evidence(*ranks)).verdicts[0]
    return first.cause, first.culprits, first.confidence


def test_one_that_stands_in_native_code_may_wait_for_a_message_and_is_only_possibly_the_cause() -> None:
    cause, culprits, confidence = _job(3)
    assert (cause, culprits) == ("not_entered", (3,))
    assert confidence == "possible"


def test_of_several_that_stand_so_nobody_is_named() -> None:
    assert _job(2, 3)[1] == ()
