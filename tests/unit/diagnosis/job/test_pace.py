"""Stuck, moving, or one rank slow."""

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.pace import Pace
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.evidence import Evidence, RankEvidence, Recorder
from stallwatch.model.verdict import Verdict
from tests.builders.job import SLEEPS, STEP_NS, Rank, loop, world

W3 = world(3)
STEPS = loop(W3, 12)


def test_dumps_taken_apart_prove_that_the_job_moved() -> None:
    """Rank 2's dump is older than what ranks 0 and 1 have completed, which needed it."""
    ranks = [_captured_soon(Rank(r, STEPS[:20], 19, looks=1)) for r in (0, 1)]
    late = _captured_soon(Rank(2, STEPS[:14], looks=1, frames=SLEEPS))
    verdict = judge(Evidence(3, "nccl", (*ranks, late), (), ())).verdicts[0]
    assert verdict.cause == "undecided"


def test_a_dump_of_an_earlier_look_alone_is_no_proof_that_the_job_moves_now() -> None:
    """Rank 2 did not answer again; what ranks 0 and 1 have completed since then they had at the first look already."""
    silent = Rank(2, STEPS[:14], looks=1)
    assert _moves(Rank(0, STEPS[:20], 19), Rank(1, STEPS[:20], 19), silent) is not True
    assert _moves(*(Rank(r, STEPS[:20], 19, looks=1) for r in (0, 1)), silent) is True


def _moves(*ranks: Rank) -> bool | None:
    return Pace(Case([reduce_rank(rank.evidence()) for rank in ranks], {}, len(ranks))).moves()


def test_a_wait_younger_than_a_few_steps_is_not_a_hang() -> None:
    fresh = [_captured_soon(Rank(r, STEPS[:21], 20, looks=1)) for r in (0, 1)]
    absent = _captured_soon(Rank(2, STEPS[:20], looks=1, frames=SLEEPS))
    verdict = judge(Evidence(3, "nccl", (*fresh, absent), (), ())).verdicts[0]
    assert verdict.cause == "undecided"


@pytest.mark.parametrize(("age_seconds", "culprits"), [(2, ()), (4, (2,))])
def test_one_look_proves_a_wait_only_where_it_is_older_than_times_of_capture_are_accurate(
    age_seconds: int, culprits: tuple[int, ...]
) -> None:
    """Of steps of a hundredth of a second two seconds are many, and no more than two dumps of a look lie apart."""
    ranks = [Rank(r, STEPS[: 20 + (r < 2)], 20, looks=1, frames=SLEEPS if r == 2 else ()) for r in range(3)]
    told = [_in_fast_steps(rank.evidence()) for rank in ranks]
    last = max(o.created_ns or 0 for rank in told for ring in rank.recorders for o in ring.operations)
    told = [msgspec.structs.replace(rank, captured_at_ns=last + age_seconds * 10 * STEP_NS) for rank in told]
    assert judge(Evidence(3, "nccl", tuple(told), (), ())).verdicts[0].culprits == culprits


def _in_fast_steps(rank: RankEvidence) -> RankEvidence:
    def sooner(ring: Recorder) -> Recorder:
        first = ring.operations[0].created_ns or 0
        entries = (
            msgspec.structs.replace(o, created_ns=first + ((o.created_ns or first) - first) // 10)
            for o in ring.operations
        )
        return msgspec.structs.replace(ring, operations=tuple(entries))

    return msgspec.structs.replace(rank, recorders=tuple(map(sooner, rank.recorders)))


def test_the_same_wait_at_both_looks_is_a_hang() -> None:
    ranks = [_captured_soon(Rank(r, STEPS[:21], 20)) for r in (0, 1)]
    absent = _captured_soon(Rank(2, STEPS[:20], frames=SLEEPS))
    verdict = judge(Evidence(3, "nccl", (*ranks, absent), (), (), looks=2)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (2,))


def test_another_wait_at_the_second_look_is_a_moving_job() -> None:
    first = [Rank(r, STEPS[:11], 10, looks=1).evidence() for r in (0, 1)]
    second = [Rank(r, STEPS[:21], 20, looks=1).evidence() for r in (0, 1)]
    both = [_two_looks(a, b) for a, b in zip(first, second, strict=True)]
    third = _two_looks(Rank(2, STEPS[:10], looks=1).evidence(), Rank(2, STEPS[:20], looks=1).evidence())
    assert judge(Evidence(3, "nccl", (*both, third), (), (), looks=2)).verdicts[0].cause == "healthy"


def test_the_rank_that_comes_last_each_time_is_slow() -> None:
    ranks = [_captured_soon(Rank(r, STEPS[:20], 19, looks=1)) for r in (0, 1)]
    late = _arriving_later(Rank(2, STEPS[:18], looks=1, frames=SLEEPS).evidence(), STEP_NS)
    verdict = judge(Evidence(3, "nccl", (*ranks, late), (), ())).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("slow_rank", (2,))


def _at_one_moment(*, age_ns: int) -> Verdict:
    """Dumps of one moment, in which nothing has gone on: all wait for rank 2, which has always come last."""
    waiting = [_captured_soon(Rank(r, STEPS[:20], 19, looks=1), age_ns) for r in (0, 1)]
    late = _arriving_later(Rank(2, STEPS[:19], looks=1, frames=SLEEPS).evidence(), STEP_NS // 2)
    late = msgspec.structs.replace(late, captured_at_ns=waiting[0].captured_at_ns)
    return judge(Evidence(3, "nccl", (*waiting, late), (), ())).verdicts[0]


def test_one_look_tells_who_is_slow_while_the_last_calls_are_fresh() -> None:
    fresh = _at_one_moment(age_ns=STEP_NS // 2)
    assert (fresh.cause, fresh.culprits, fresh.confidence) == ("slow_rank", (2,), "possible")
    stale = _at_one_moment(age_ns=10 * STEP_NS)
    assert stale.cause != "slow_rank"


def test_of_two_ranks_the_late_one_is_late_by_all_that_the_other_waits() -> None:
    steps = loop(world(2), 12)
    first = _captured_soon(Rank(0, steps[:20], 19, looks=1))
    late = _arriving_later(Rank(1, steps[:18], looks=1, frames=SLEEPS).evidence(), STEP_NS)
    verdict = judge(Evidence(2, "nccl", (first, late), (), ())).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("slow_rank", (1,))
    assert f"comes {STEP_NS / 1e9:.3g} s after the others" in verdict.because[0].fact


def test_arrivals_are_not_compared_over_clocks_of_two_hosts() -> None:
    ranks = [_captured_soon(Rank(r, STEPS[:20], 19, looks=1, host=f"node{r}")) for r in (0, 1)]
    late = _arriving_later(Rank(2, STEPS[:18], looks=1).evidence(), STEP_NS)
    verdict = judge(Evidence(3, "nccl", (*ranks, late), (), ())).verdicts[0]
    assert verdict.cause == "undecided"


def _captured_soon(rank: Rank, age_ns: int = STEP_NS // 2) -> RankEvidence:
    found = rank.evidence()
    last = max(o.created_ns or 0 for r in found.recorders for o in r.operations)
    return msgspec.structs.replace(found, captured_at_ns=last + age_ns)


def _two_looks(first: RankEvidence, second: RankEvidence) -> RankEvidence:
    later = tuple(msgspec.structs.replace(recorder, look=2) for recorder in second.recorders)
    return msgspec.structs.replace(second, recorders=(*first.recorders, *later))


def _arriving_later(rank: RankEvidence, by_ns: int) -> RankEvidence:
    recorders = tuple(
        msgspec.structs.replace(
            recorder,
            operations=tuple(
                msgspec.structs.replace(operation, created_ns=(operation.created_ns or 0) + by_ns)
                for operation in recorder.operations
            ),
        )
        for recorder in rank.recorders
    )
    return msgspec.structs.replace(rank, recorders=recorders)


def test_a_slow_rank_is_seen_beside_one_without_a_dump_and_said_with_less_trust() -> None:
    steps = loop(world(4), 12)
    ranks = [_captured_soon(Rank(r, steps[:20], 19, looks=1)) for r in (0, 1)]
    late = _arriving_later(Rank(2, steps[:18], looks=1, frames=SLEEPS).evidence(), STEP_NS)
    dark = _captured_soon(Rank(3, steps[:20], 19, looks=1))
    dark = msgspec.structs.replace(dark, recorders=())
    verdict = judge(Evidence(4, "nccl", (*ranks, late, dark), (), ())).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("slow_rank", (2,), "possible")


def _becoming_late(rank: RankEvidence, by_ns: int, last: int) -> RankEvidence:
    """As if it had come later to its last calls only."""
    (recorder,) = rank.recorders
    early, late = recorder.operations[:-last], recorder.operations[-last:]
    moved = tuple(msgspec.structs.replace(one, created_ns=(one.created_ns or 0) + by_ns) for one in late)
    return msgspec.structs.replace(rank, recorders=(msgspec.structs.replace(recorder, operations=(*early, *moved)),))


def test_a_part_of_a_step_in_the_last_calls_is_a_slow_rank_and_measured_from_its_beginning() -> None:
    steps = loop(W3, 60)
    ranks = [_captured_soon(Rank(r, steps[:116], 115, looks=1)) for r in (0, 1)]
    late = _becoming_late(Rank(2, steps[:114], looks=1, frames=SLEEPS).evidence(), STEP_NS // 2, last=34)
    verdict = judge(Evidence(3, "nccl", (*ranks, late), (), ())).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("slow_rank", (2,))
    cost = verdict.slowness
    assert cost is not None
    assert cost.cost_seconds == pytest.approx(STEP_NS / 2 / 1e9, rel=1e-3)
    assert 14 <= cost.steps <= 24
    assert cost.low_seconds <= cost.cost_seconds <= cost.high_seconds


def test_what_two_slow_ranks_cost_is_what_the_others_wait_for_the_later_one() -> None:
    """Seen live: two whose CPUs were shared came 0.31 s and 0.39 s late, and the job lost the longer time."""
    steps = loop(world(5), 60)
    ranks = [_captured_soon(Rank(r, steps[:116], 115, looks=1)) for r in (0, 1, 2)]
    late = [Rank(r, steps[:114], looks=1, frames=SLEEPS).evidence() for r in (3, 4)]
    slow = [_becoming_late(one, by, last=34) for one, by in zip(late, (STEP_NS // 2, 3 * STEP_NS // 4), strict=True)]
    verdict = judge(Evidence(5, "gloo", (*ranks, *slow), (), ())).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("slow_rank", (3, 4))
    assert verdict.slowness is not None
    assert verdict.slowness.cost_seconds == pytest.approx(0.75 * STEP_NS / 1e9, rel=1e-3)


def test_who_comes_last_in_every_other_call_is_not_slow() -> None:
    steps = loop(W3, 60)
    ranks = [_captured_soon(Rank(r, steps[:116], 115, looks=1)).recorders[0] for r in range(3)]
    turns = [
        msgspec.structs.replace(
            recorder,
            operations=tuple(
                msgspec.structs.replace(one, created_ns=(one.created_ns or 0) + STEP_NS // 2 * (index // 4 % 3 == rank))
                for index, one in enumerate(recorder.operations)
            ),
        )
        for rank, recorder in enumerate(ranks)
    ]
    evidence = [
        msgspec.structs.replace(_captured_soon(Rank(r, steps[:116], 115, looks=1)), recorders=(turns[r],))
        for r in range(3)
    ]
    assert judge(Evidence(3, "nccl", tuple(evidence), (), ())).verdicts[0].cause != "slow_rank"


def test_ranks_that_come_one_after_the_other_by_design_are_not_slow() -> None:
    steps = loop(world(4), 60)
    evidence = []
    for rank in range(4):
        found = _captured_soon(Rank(rank, steps[:116], 115, looks=1))
        (recorder,) = found.recorders
        spread = tuple(
            msgspec.structs.replace(one, created_ns=(one.created_ns or 0) + rank * STEP_NS // 8)
            for one in recorder.operations
        )
        evidence.append(
            msgspec.structs.replace(found, recorders=(msgspec.structs.replace(recorder, operations=spread),))
        )
    assert judge(Evidence(4, "nccl", tuple(evidence), (), ())).verdicts[0].cause != "slow_rank"


@pytest.mark.parametrize(("lost", "moved"), [(0, False), (STEP_NS // 5, True)], ids=["a fault", "experts"])
def test_work_that_has_moved_from_the_others_to_one_rank_is_by_design(lost: int, moved: bool) -> None:
    steps, times, began = loop(world(4), 40), [], 0
    for call in range(80):
        more = (3 * STEP_NS // 5, -lost) if call >= 40 else (0, 0)
        times.append({rank: began + STEP_NS + more[rank != 2] + rank for rank in range(4)})
        began = max(times[-1].values())
    ranks = []
    for rank in range(4):
        evidence = Rank(rank, steps, 79, looks=1).evidence()
        (recorder,) = evidence.recorders
        told = enumerate(recorder.operations)
        operations = tuple(msgspec.structs.replace(one, created_ns=times[at][rank]) for at, one in told)
        recorders = (msgspec.structs.replace(recorder, operations=operations),)
        ranks.append(msgspec.structs.replace(evidence, recorders=recorders, captured_at_ns=began + STEP_NS // 2))
    verdict = judge(Evidence(4, "nccl", tuple(ranks), (), ())).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("slow_rank", (2,))
    assert ("work has moved to rank 2" in verdict.by_design) == moved
