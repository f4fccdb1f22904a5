"""Stacks alone: who stands in another collective than most."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.verdict import Verdict
from tests.builders.job import IN_RECV, SLEEPS, Rank, evidence

_C10D = IN_RECV[0].filename


def _inside(call: str, line: int) -> tuple[CodeFrame, ...]:
    return (CodeFrame(call, _C10D, 3000), CodeFrame("step", "/srv/job/train.py", line), SLEEPS[-1])


def _judged(*stacks: tuple[CodeFrame, ...], looks: int = 2) -> Verdict:
    ranks = [
        Rank(rank, dumped=False, frames=frames, wchan="futex_do_wait", backend="gloo", looks=looks)
        for rank, frames in enumerate(stacks)
    ]
    return judge(replace(evidence(*ranks), looks=looks)).verdicts[0]


REDUCES, GATHERS, REDUCES_LATER = _inside("all_reduce", 10), _inside("all_gather", 12), _inside("all_reduce", 20)


def test_who_stands_in_another_collective_is_named_as_a_guess() -> None:
    verdict = _judged(REDUCES, GATHERS, REDUCES, REDUCES)
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (1,), "possible")
    assert verdict.mismatch is not None
    assert (verdict.mismatch.expected, verdict.mismatch.found) == ("all_reduce", "all_gather")
    assert verdict.waiting == "0,2-3"
    assert verdict.ends_by_itself == "first_use", "nobody is told at once"


def test_who_stands_at_another_line_is_named_too() -> None:
    verdict = _judged(REDUCES, REDUCES, REDUCES, REDUCES_LATER)
    assert (verdict.cause, verdict.culprits, verdict.mismatch) == ("collective_mismatch", (3,), None)
    assert "another operation" in verdict.summary


@pytest.mark.parametrize(
    "stacks",
    [
        (REDUCES, REDUCES, REDUCES, REDUCES),
        (REDUCES, REDUCES, GATHERS, GATHERS),
        (REDUCES, REDUCES, REDUCES, GATHERS, REDUCES_LATER),
        (_inside("recv", 10), _inside("recv", 10), _inside("send", 12)),
        (_inside("barrier", 10), _inside("barrier", 10), _inside("new_group", 12)),
    ],
)
def test_nobody_is_named_where_there_is_no_one_other_place(stacks: tuple[tuple[CodeFrame, ...], ...]) -> None:
    assert _judged(*stacks).culprits == ()


def test_one_look_shows_no_standstill() -> None:
    assert _judged(REDUCES, GATHERS, REDUCES, REDUCES, looks=1).culprits == ()
