"""What incidents ask of a job, from its ranks' histories."""

from typing import Any

import pytest
from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.history import NodeHistory, RankHistory, advance
from stallwatch.detectors.job_facts import JobFacts, job_facts
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import GroupCounter, ProcessEnd, RankSample
from tests.builders.heartbeat import START_NS
from tests.builders.node import process, sample, snapshot
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
    worked = replace(history.ranks[2].ticks, worked_ns=history.at_ns, worked_beside_ns=5)
    before = {"ticks": replace(worked, worked_ns=7, worked_beside_ns=6)}
    assert of(history, each=before).worked_ns(()) == 7
    assert of(history, each=before, ticks=worked).worked_ns(()) == history.at_ns
    assert of(history, each=before, ticks=worked).worked_ns({2}) == 7, "who waits for others spins"
    assert of(history, each=before, ticks=worked).worked_ns({0, 1, 2, 3}) == 6
    assert replace(of(history), worked=()).worked_ns(()) == 0


@pytest.mark.parametrize(("read", "written", "unseen"), [(7, 7, False), (None, 7, True), (7, None, True)])
def test_what_may_not_be_read_of_one_rank_is_not_seen_of_its_job(
    read: int | None, written: int | None, unseen: bool
) -> None:
    history = seen()

    def moving(rank: int, read: int | None, written: int | None) -> RankSample:
        return replace(
            history.ranks[rank].sample, process=Known(process(rank, read_bytes=read, write_bytes=written), 0)
        )

    ranks = tuple(replace(rank, sample=moving(rank.sample.rank, 0, 0)) for rank in history.ranks)
    assert of(replace(history, ranks=ranks), sample=moving(2, read, written)).io_unseen is unseen


@pytest.mark.parametrize(("used", "seconds"), [(0, 0), (155, 31)])
def test_a_rank_without_a_hook_is_asked_for_work_as_the_others_are(used: int, seconds: int) -> None:
    """That nothing was known of it counted as a start in which it did nothing."""
    history = None
    for second, ticks in ((0, 0), (1, 0), (31, used)):
        at_ns = START_NS + second * SECOND_NS
        history = advance(history, snapshot(second, (sample(0, None, at_ns=at_ns, cpu_ticks=ticks),)))
    assert history is not None
    assert of(history).worked_ns(()) == START_NS + seconds * SECOND_NS


def test_who_has_left_has_ended_with_exit_code_0() -> None:
    history = seen()

    def left_by(code: int | None) -> tuple[int, ...]:
        gone = replace(history.ranks[2].sample, end=ProcessEnd(history.at_ns, code, None, "hook"))
        return of(history, sample=gone).left

    assert (left_by(0), left_by(1), left_by(None)) == ((2,), (), ())
    assert of(history).left == ()
