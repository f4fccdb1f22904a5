"""Some wait in a barrier that no recorder holds, the others in a collective: neither lets the other go."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame
from tests.builders.job import SLEEPS, Rank, evidence, loop, world

_C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
STEPS = loop(world(4), 5)
MONITORED = (CodeFrame("monitored_barrier", _C10D, 5100), CodeFrame("<module>", "/srv/job/train.py", 60))


def _in_it(rank: int) -> Rank:
    return Rank(rank, STEPS, len(STEPS), frames=MONITORED, wchan="futex_do_wait", backend="gloo")


def _in_another(rank: int) -> Rank:
    return Rank(rank, (*STEPS, STEPS[0]), len(STEPS), backend="gloo")


@pytest.mark.parametrize(
    ("inside", "culprits", "confidence"),
    [((0, 1, 3), (2,), "likely"), ((2,), (2,), "likely"), ((0, 1), (), "possible")],
)
def test_the_few_are_named_and_nobody_of_halves(
    inside: tuple[int, ...], culprits: tuple[int, ...], confidence: str
) -> None:
    verdict = judge(evidence(*((_in_it if rank in inside else _in_another)(rank) for rank in range(4)))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", culprits, confidence)
    assert verdict.mismatch is not None or not culprits
    assert "monitored_barrier" in verdict.summary and "all_reduce" in verdict.summary


def test_who_is_elsewhere_has_not_entered_either() -> None:
    sleeps = Rank(3, STEPS, len(STEPS), frames=SLEEPS, wchan="hrtimer_nanosleep", backend="gloo")
    verdict = judge(evidence(_in_it(0), _in_it(1), _in_another(2), sleeps)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))


def test_one_look_is_enough_not_to_accuse_the_many() -> None:
    ranks = [_in_it(rank) for rank in (0, 1, 3)]
    seen = evidence(*ranks, _in_another(2))
    first = tuple(replace(rank, stacks=rank.stacks[:1], processes=rank.processes[:1]) for rank in seen.ranks)
    verdict = judge(replace(seen, ranks=first)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (2,), "possible")
