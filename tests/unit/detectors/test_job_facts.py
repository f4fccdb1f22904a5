"""What incidents ask of a job, from its ranks' histories."""

from typing import Any

import pytest
from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.job_facts import JobFacts, job_facts
from stallwatch.model.snapshot import GroupCounter, ProcessEnd
from tests.unit.detectors.test_why_slow import seen


def of(history: NodeHistory, *, each: dict[str, Any] | None = None, **of_rank_2: Any) -> JobFacts:
    """With these words of every rank's history, and those of rank 2's."""

    def changed(rank: RankHistory) -> RankHistory:
        return replace(rank, **((each or {}) | (of_rank_2 if rank.sample.rank == 2 else {})))

    ranks = {field: tuple(map(changed, getattr(history, field))) for field in ("ranks",)}
    (facts,) = job_facts(replace(history, **ranks), {})
    return facts


def test_a_job_has_a_hook_where_one_of_its_ranks_has() -> None:
    assert of(seen()).hooked
    assert of(seen(), heartbeat=None).hooked
    assert not of(seen(), each={"heartbeat": None}).hooked


@pytest.mark.parametrize(("ago", "debugged"), [(None, ()), (0.0, (2,)), (3.0, (2,)), (3.1, ())])
def test_a_rank_is_debugged_until_three_seconds_after_its_tracer_was_seen(
    ago: float | None, debugged: tuple[int, ...]
) -> None:
    history = seen()
    traced_ns = None if ago is None else history.at_ns - int(ago * SECOND_NS)
    assert of(history, traced_ns=traced_ns).debugged == debugged


@pytest.mark.parametrize(("pending", "seconds", "waiting"), [(True, 6, (2,)), (True, 3, ()), (False, 6, ())])
def test_who_waits_has_had_an_operation_pending_for_some_seconds(
    pending: bool, seconds: float, waiting: tuple[int, ...]
) -> None:
    history = seen()
    heartbeat, ticks = history.ranks[2].heartbeat, history.ranks[2].ticks
    assert heartbeat is not None
    groups = (GroupCounter("gloo", 0, 7, 6 if pending else 7),)
    still = replace(ticks, counters_since_ns=history.at_ns - int(seconds * SECOND_NS))
    assert of(history, heartbeat=replace(heartbeat, groups=groups), ticks=still).waiting == waiting


def test_a_start_was_last_at_work_when_the_last_of_its_ranks_was() -> None:
    history = seen()
    worked = replace(history.ranks[2].ticks, worked_ns=history.at_ns)
    before = {"ticks": replace(worked, worked_ns=7)}
    assert of(history, each=before).worked_ns == 7
    assert of(history, each=before, ticks=worked).worked_ns == history.at_ns


def test_who_has_left_has_ended_with_exit_code_0() -> None:
    history = seen()

    def left_by(code: int | None) -> tuple[int, ...]:
        gone = replace(history.ranks[2].sample, end=ProcessEnd(history.at_ns, code, None, "hook"))
        return of(history, sample=gone).left

    assert (left_by(0), left_by(1), left_by(None)) == ((2,), (), ())
    assert of(history).left == ()
