"""Whether what a rank has more to do was the other ranks' before, and what it costs them."""

from collections.abc import Sequence

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import Evidence, SampledStack
from stallwatch.model.verdict import Verdict
from tests.builders.job import STEP_NS
from tests.unit.diagnosis.claims.test_slow_rank import PEERS, QUIET, profiled_rank
from tests.unit.diagnosis.job.test_time_spent import backward, line, load_batch, seen


def moved(
    peers_runnable: float | None,
    *,
    of_rank_3: int = -20_000_000,
    of_rank_2: Sequence[int] = (60_000_000,),
    stacks: Sequence[SampledStack] = (),
    also: int | None = None,
    crowd: bool = False,
    seldom: bool = False,
) -> Verdict:
    """Of a job whose rank 2 gets 60 ms in each step, of which the three others lose 20 each, halfway; `stacks`: where
    rank 2 was seen, if ranks were profiled, and the rank `also` with it. `crowd`: what the others lose they had to wait
    for a CPU until then, in three steps of four; `seldom`: they lose it in one step of four."""
    more = {0: -20_000_000, 1: -20_000_000, 2: 0, 3: of_rank_3}
    began, arrivals = 0, []
    for call in range(78):
        since, first = call >= 40, call % 2 == 0
        more[2] = of_rank_2[call // 2 % len(of_rank_2)]
        fourth = call // 2 % 4 == 0
        lighter = (since and (fourth or not seldom)) or (crowd and fourth)
        now = {rank: (lighter if rank != 2 else since) * more[rank] for rank in more}
        arrivals.append({rank: began + STEP_NS + first * now[rank] for rank in range(4)})
        began = max(arrivals[-1].values())
    ranks = []
    for number in range(4):
        runnable = 0.0 if number == 2 else peers_runnable
        seen_at = (stacks if number in (2, also) else PEERS) if stacks else ()
        rank = profiled_rank(number, seen_at, msgspec.structs.replace(QUIET, runnable_share=runnable))
        (recorder,) = rank.recorders
        begins = recorder.operations[0].created_ns or 0
        came = tuple(
            msgspec.structs.replace(one, created_ns=begins + at[number])
            for one, at in zip(recorder.operations, arrivals, strict=False)
        )
        recorders = (msgspec.structs.replace(recorder, operations=came),)
        ranks.append(msgspec.structs.replace(rank, recorders=recorders, captured_at_ns=begins + began + STEP_NS // 2))
    (found,) = judge(Evidence(4, "gloo", tuple(ranks), (), ())).verdicts
    assert (found.cause, found.culprits) == ("slow_rank", (2,))
    return found


def test_work_that_has_moved_is_by_design_and_a_machine_that_has_become_less_busy_is_none() -> None:
    """Whether ranks lack a CPU or not: seen live at a load of 19, a rank that was given what seven others lost was
    told as slow, for these lacked a CPU 3 % of the time. Of a crowd that has ended the quickest steps before know
    nothing."""
    assert "work has moved to rank 2" in moved(0.0).by_design
    assert "work has moved to rank 2" in moved(0.15).by_design
    assert moved(0.15, crowd=True).by_design == ""


def test_where_it_is_not_known_whether_ranks_lack_a_cpu_both_must_tell_that_work_has_moved() -> None:
    """Nothing known is not a CPU for each: a crowd that had ended kept a slow rank from being told."""
    assert moved(None, crowd=True).by_design == ""
    assert moved(None, seldom=True).by_design == ""
    assert "work has moved to rank 2" in moved(None).by_design


def test_where_nobody_lacks_a_cpu_most_steps_tell_and_not_the_quickest() -> None:
    assert moved(0.0, seldom=True).by_design == ""


@pytest.mark.parametrize(
    ("stacks", "has_moved"),
    [
        ([load_batch(6), seen(40, line(90)), seen(20, line(77)), backward(34)], False),
        ([load_batch(6), seen(60, line(90)), seen(2, line(77)), backward(34)], True),
        ([load_batch(36), seen(60, line(90)), backward(4)], True),
    ],
    ids=["a line of its own", "a line of its own that takes little", "a line of all"],
)
def test_a_line_that_no_other_rank_comes_to_holds_no_work_of_theirs(
    stacks: Sequence[SampledStack], has_moved: bool
) -> None:
    assert ("work has moved to rank 2" in moved(0.0, stacks=stacks).by_design) == has_moved


def test_a_line_that_one_other_rank_comes_to_as_often_is_not_its_own() -> None:
    """Of four experts two are chosen by all tokens, and one of these comes last."""
    stacks = [load_batch(6), seen(40, line(90)), seen(20, line(77)), backward(34)]
    assert "work has moved to rank 2" in moved(0.0, stacks=stacks, also=3).by_design


def test_what_a_rank_costs_is_what_the_last_of_the_others_waits_for_it() -> None:
    cost = moved(0.0, of_rank_3=0).slowness
    assert cost is not None
    assert cost.cost_seconds == pytest.approx(0.06)


def test_what_is_late_by_little_and_by_much_costs_what_it_does_on_the_whole() -> None:
    cost = moved(0.0, of_rank_2=(20_000_000, 130_000_000, 30_000_000)).slowness
    assert cost is not None
    assert cost.cost_seconds == pytest.approx(0.08, rel=0.1)
    assert cost.low_seconds < cost.cost_seconds < cost.high_seconds
