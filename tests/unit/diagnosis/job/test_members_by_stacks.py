"""A group whose members no recorder names: who stands in the function that called it is on its way there."""

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, Evidence, RankEvidence, ThreadStack
from stallwatch.model.verdict import Verdict
from tests.builders.job import Call, Group, Rank, evidence, world

_JOB, _LIB = "/srv/job/train.py", "/usr/lib/python3.11"
SIDE = Group("1", "undefined", (0, 1, 3), 1)
STEPS = tuple(Call(world(4), line=10) for _ in range(6))
RESULT = (
    CodeFrame("Condition.wait", f"{_LIB}/threading.py", 327),
    CodeFrame("Future.result", f"{_LIB}/concurrent/futures/_base.py", 451),
)
POOL = (CodeFrame("_WorkItem.run", f"{_LIB}/concurrent/futures/thread.py", 58),)
AT_LOCK = (CodeFrame("Condition.wait", f"{_LIB}/threading.py", 327),)
IN_CALL = (CodeFrame("all_reduce", "/opt/site-packages/torch/distributed/distributed_c10d.py", 3252),)


def _main(function: str, line: int) -> tuple[CodeFrame, ...]:
    return (CodeFrame(function, _JOB, line), CodeFrame("main", _JOB, 90), CodeFrame("<module>", _JOB, 99))


def _inside(rank: int, frames: tuple[CodeFrame, ...], thread: str = "1") -> Rank:
    calls = (*STEPS, Call(SIDE, thread=thread))
    return Rank(rank, calls, len(STEPS), frames=frames, wchan="futex_do_wait", backend="gloo", members_known=False)


def _away(frames: tuple[CodeFrame, ...]) -> Rank:
    return Rank(2, STEPS, len(STEPS), frames=frames, wchan="futex_do_wait", backend="gloo", members_known=False)


def _verdict(case: Evidence) -> Verdict:
    return judge(case).verdicts[0]


def _with_thread(rank: RankEvidence, frames: tuple[CodeFrame, ...]) -> RankEvidence:
    assert rank.pid is not None
    thread = ThreadStack("ThreadPoolExecutor-0_0", rank.pid + 500, False, False, (*frames, *POOL), rank.pid)
    stacks = tuple(msgspec.structs.replace(one, threads=(*one.threads, thread)) for one in rank.stacks)
    return msgspec.structs.replace(rank, stacks=stacks)


def test_the_thread_that_has_not_come_to_the_line_of_its_peers_threads_is_named() -> None:
    waits = (*RESULT, *_main("save", 40))
    case = evidence(*(_inside(rank, waits, "2") for rank in (0, 1)), _away(waits), _inside(3, waits, "2"))
    before, call = CodeFrame("gather", _JOB, 30), CodeFrame("gather", _JOB, 31)
    ranks = tuple(_with_thread(rank, (*AT_LOCK, before) if rank.rank == 2 else (*IN_CALL, call)) for rank in case.ranks)
    verdict = _verdict(msgspec.structs.replace(case, ranks=ranks))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (2,), "likely")
    assert "train.py:30" in verdict.summary


@pytest.mark.parametrize(("function", "confidence"), [("evaluate", "likely"), ("load", "possible")])
def test_a_rank_in_the_function_of_the_call_has_not_entered_it_and_the_only_other_one_may_not(
    function: str, confidence: str
) -> None:
    """In `evaluate` it is on its way to the call; in `load` it is only the one rank that is left."""
    inside = [_inside(rank, (*IN_CALL, *_main("evaluate", 51))) for rank in (0, 1, 3)]
    verdict = _verdict(evidence(inside[0], inside[1], _away((*AT_LOCK, *_main(function, 50))), inside[2]))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (2,), confidence)


def test_who_works_elsewhere_is_not_said_to_be_a_member() -> None:
    """Two ranks are left, and neither stands where the group was called."""
    group = Group("1", "undefined", (0, 1), 1)
    inside = [
        Rank(rank, (*STEPS, Call(group)), len(STEPS), frames=(*IN_CALL, *_main("evaluate", 51)), backend="gloo",
             members_known=False)
        for rank in (0, 1)
    ]  # fmt: skip
    others = [
        Rank(rank, STEPS, len(STEPS), frames=(*AT_LOCK, *_main("load", 20)), backend="gloo", members_known=False)
        for rank in (2, 3)
    ]
    assert not _verdict(evidence(*inside, *others)).culprits
