"""Most ranks make a process group, which those that went on were to make as well."""

import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame
from tests.unit.diagnosis.build import Rank, evidence, loop, world

_C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
STEPS = loop(world(4), 5)
MAKES = (
    CodeFrame("_new_process_group_helper", _C10D, 2100),
    CodeFrame("_new_group_with_tag", _C10D, 5400),
    CodeFrame("new_group", _C10D, 5300),
    CodeFrame("<module>", "/srv/job/train.py", 60),
)
STARTS = (CodeFrame("init_process_group", _C10D, 1700), CodeFrame("<module>", "/srv/job/train.py", 9))


def _inside(rank: int, frames: tuple[CodeFrame, ...] = MAKES) -> Rank:
    return Rank(rank, STEPS, len(STEPS), frames=frames, wchan="do_poll", backend="gloo")


def _waits(rank: int) -> Rank:
    return Rank(rank, (*STEPS, STEPS[0]), len(STEPS), backend="gloo")


def test_who_goes_on_without_the_group_that_the_others_make_is_named() -> None:
    verdict = judge(evidence(*(_inside(rank) for rank in range(3)), _waits(3))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (3,), "likely")
    assert verdict.mismatch is not None and verdict.mismatch.expected == "new_group"
    assert verdict.ends_by_itself == "first_use"
    assert "members or not" in verdict.next_steps[0] and "train.py:60" in verdict.next_steps[0]


BARRIER = (CodeFrame("barrier", _C10D, 5030), CodeFrame("<module>", "/srv/job/train.py", 61))


@pytest.mark.parametrize(
    ("backend", "cause", "culprits"), [("nccl", "collective_mismatch", (3,)), ("gloo", None, None)]
)
def test_the_first_collective_of_a_group_waits_for_members_that_went_on(
    backend: str, cause: str | None, culprits: tuple[int, ...] | None
) -> None:
    """NCCL's recorder holds it once the group is connected; gloo's holds all, so that it must be another call there."""
    ranks = [Rank(rank, STEPS, len(STEPS), frames=BARRIER, state="R", wchan=None, backend=backend) for rank in range(3)]
    waits = Rank(3, (*STEPS, STEPS[0]), len(STEPS), backend=backend)
    verdict = judge(evidence(*ranks, waits)).verdicts[0]
    if cause is None:
        assert verdict.cause != "collective_mismatch"
        return
    assert (verdict.cause, verdict.culprits, verdict.confidence) == (cause, culprits, "possible")
    assert verdict.ends_by_itself == "first_use"
    assert "new_group" in verdict.next_steps[0] and "train.py:61" in verdict.next_steps[0]


@pytest.mark.parametrize("inside", [1, 2])
def test_the_few_that_make_a_group_alone_are_those_that_the_others_wait_for(inside: int) -> None:
    ranks = [_inside(rank) if rank < inside else _waits(rank) for rank in range(4)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", tuple(range(inside)))


def test_a_start_is_none() -> None:
    verdict = judge(evidence(*(_inside(rank, STARTS) for rank in range(3)), _waits(3))).verdicts[0]
    assert verdict.cause != "collective_mismatch"
