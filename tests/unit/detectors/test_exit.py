import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.detectors.detection import Detected
from stallwatch.detectors.exit import ExitDetector, describe, failed_by_itself, is_ending
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import Heartbeat, NodeSnapshot, ProcessEnd, RankSample
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import process, sample, snapshot, with_beat
from tests.builders.running_job import found, four, job_run, run


def end(second: float, code: int | None = None, signal: int | None = None, oom: bool | None = None) -> ProcessEnd:
    return ProcessEnd(START_NS + int(second * SECOND_NS), code, signal, "zombie", oom)


def job_with(ends: dict[int, ProcessEnd], seconds: float = 60, stuck_at: float = math.inf) -> list[NodeSnapshot]:
    def edit(second: float, rank: RankSample) -> RankSample:
        mine = ends.get(rank.rank)
        if mine is None or START_NS + second * SECOND_NS < mine.at_ns:
            return rank
        return msgspec.structs.replace(rank, end=mine, process=Unavailable("gone", mine.at_ns))

    return job_run(four(stuck_at=stuck_at), seconds, edit=edit)


@pytest.mark.parametrize("how", [end(20.3, signal=9), end(20.3, code=1), end(20.3, signal=11), end(20.3, oom=True)])
def test_an_abnormal_end_is_a_finding_at_the_next_tick_and_cannot_resolve_itself(how: ProcessEnd) -> None:
    second, finding = found(run(job_with({2: how})), "exit")[0]
    assert second == 21
    assert finding.ranks == (2,)
    assert finding.stage == "confirmed"
    assert not finding.resolvable


@pytest.mark.parametrize(
    ("how", "failed"),
    [
        *((end(20.3, code=1), True), (end(20.3, signal=6), True)),
        *((end(20.3, signal=9), False), (end(20.3, code=137), False), (end(20.3, signal=15), False)),
        *((end(20.3, code=0), False), (end(20.3), False), (end(20.3, code=1, oom=True), False)),
    ],
)
def test_a_failure_of_its_own_is_told_from_an_end_that_somebody_made(how: ProcessEnd, failed: bool) -> None:
    ends = {2: how} | {rank: end(20.4, signal=15) for rank in (0, 1, 3)}
    assert run(job_with(ends, 25))[-1][1].jobs[0].failed is failed


def test_the_first_death_is_named_not_the_clean_up_after_it() -> None:
    ends = {1: end(20.40, signal=15), 2: end(20.30, signal=9), 3: end(20.41, code=1), 0: end(20.42, signal=15)}
    findings = [finding for _, finding in found(run(job_with(ends, 25)), "exit")]
    assert {finding.ranks for finding in findings} == {(2,)}
    assert "signal 9" in findings[0].reason


@pytest.mark.parametrize(
    "ends",
    [
        {rank: end(20.3 + rank / 10, code=0) for rank in range(4)},
        {rank: end(20.3 + rank / 10, signal=15) for rank in range(4)},
        {rank: end(20.3 + rank / 10, code=143) for rank in range(4)},
        {0: end(20.3, signal=15), 1: end(20.4, code=1), 2: end(20.5, code=1), 3: end(21.3, signal=9)},
        {rank: end(20.3) for rank in range(4)},
    ],
    ids=["exit 0", "SIGTERM", "SIGTERM by a shell", "SIGTERM first, then what follows it", "unknown, all at once"],
)
def test_a_planned_end_is_quiet(ends: dict[int, ProcessEnd]) -> None:
    detected = run(job_with(ends))
    assert not found(detected, "exit")
    assert detected[-1][1].jobs[0].ending


def test_a_rank_that_left_in_order_and_took_the_others_with_it_is_a_finding() -> None:
    """Its peers die of the lost connection within a tenth of a second, or are ended by the launcher."""
    ends = {2: end(20.3, code=0), 0: end(20.35, code=1), 1: end(20.36, code=1), 3: end(20.4, signal=15)}
    findings = [finding for _, finding in found(run(job_with(ends, 25)), "exit")]
    assert {finding.ranks for finding in findings} == {(2,)}


@pytest.mark.parametrize(
    "ends",
    [
        {0: end(20.3, code=0), 1: end(20.4, code=0), 2: end(20.5, code=1), 3: end(20.6, code=0)},
        {0: end(20.3, code=0), 1: end(20.31, signal=15), 2: end(20.5, code=1), 3: end(20.6, code=0)},
    ],
    ids=["half of them leave in order", "asked to end by a signal"],
)
def test_a_job_that_leaves_as_a_whole_is_ending_whatever_the_last_of_it_say(ends: dict[int, ProcessEnd]) -> None:
    assert not found(run(job_with(ends, 25)), "exit")


def test_a_rank_that_left_early_is_a_finding_only_after_the_time_to_end() -> None:
    left = {3: end(20.3, code=0)}
    seconds = [second for second, _ in found(run(job_with(left, 80, stuck_at=20.4)), "exit")]
    assert 50 <= seconds[0] <= 52
    assert seconds[-1] == 80
    assert run(job_with(left, 30))[-1][1].jobs[0].ending


def test_a_world_that_shrank_is_not_ending_and_what_stands_later_stands_since_then() -> None:
    left = {3: end(20.3, code=0)}
    detected = run(job_with(left, 120, stuck_at=100.3))
    assert not found(detected, "exit")
    states = {second: (one.jobs[0].ending, one.ranks[0].state) for second, one in detected}
    assert (states[45], states[55]) == ((True, "ending"), (False, "stepping"))
    since_ns = min(finding.since_ns for _, one in detected for finding in one.findings)
    assert since_ns > START_NS + 99 * SECOND_NS


def test_who_leaves_a_world_that_shrank_is_given_the_time_to_end_anew() -> None:
    ends = {3: end(20.3, code=0), 2: end(80.3, code=0)}
    findings = found(run(job_with(ends, 140, stuck_at=80.4)), "exit")
    assert [findings[0][0], findings[0][1].ranks] == [111, (2,)]
    crash = found(run(job_with({3: end(20.3, code=0), 2: end(80.3, code=1)}, 100)), "exit")
    assert [crash[0][0], crash[0][1].ranks] == [81, (2,)]


def test_a_hooked_rank_that_vanished_without_a_word_while_others_live_was_killed() -> None:
    assert found(run(job_with({3: end(20.3)}, 25)), "exit")[0][0] == 21


def test_a_hooked_rank_that_said_goodbye_was_not_killed() -> None:
    shots = [
        msgspec.structs.replace(shot, ranks=tuple(with_beat(r, ended=True) if r.end else r for r in shot.ranks))
        for shot in job_with({3: end(20.3)}, 25)
    ]
    assert not found(run(shots), "exit")


def test_a_death_stays_found_when_the_rest_of_the_job_is_cleaned_up() -> None:
    ends = {3: end(20.3, signal=9)} | {rank: end(25.3, signal=15) for rank in range(3)}
    seconds = [second for second, _ in found(run(job_with(ends, 40)), "exit")]
    assert seconds[-1] == 40


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (end(20.3, code=0), "exit code 0"),
        (end(20.3, code=3), "exit code 3"),
        (end(20.3, signal=9), "signal 9 (SIGKILL)"),
        (end(20.3, signal=9, oom=True), "killed for memory"),
        (end(20.3), "nobody could tell how"),
    ],
)
def test_of_a_rank_that_is_gone_people_see_how_it_ended(how: ProcessEnd, said: str) -> None:
    views = {view.rank: view for view in run(job_with({2: how}, 25))[-1][1].ranks}
    assert (views[2].state, views[2].ended) == ("gone", said)
    assert views[1].ended == ""


def gone(how: ProcessEnd | None, rank: int = 0, beat: Heartbeat | None = None) -> RankHistory:
    """A rank that has ended so; None: it lives. Without a record it has no hook."""
    return RankHistory(sample(rank, beat, end=how), START_NS, beat)


def all_of(*ends: ProcessEnd | None, beat: Heartbeat | None = None) -> tuple[RankHistory, ...]:
    return tuple(gone(how, rank, beat) for rank, how in enumerate(ends))


@pytest.mark.parametrize("number", [4, 5, 6, 7, 8, 11, 13, 31])
def test_a_signal_that_a_process_gives_itself_is_a_failure_of_its_own(number: int) -> None:
    assert failed_by_itself(all_of(end(1, signal=number), None))


@pytest.mark.parametrize("number", [1, 2, 15])
def test_signals_by_which_people_and_schedulers_end_jobs_are_no_failure(number: int) -> None:
    for how in (end(1, signal=number), end(1, code=128 + number)):
        assert is_ending(all_of(how, None, None))
    killed_after = all_of(end(1, code=0), end(1, signal=number), None, None, None)
    assert is_ending(killed_after), "the clean-up of a job that leaves, by that signal"
    assert not is_ending(all_of(end(1, code=0), end(1.1, signal=9), None, None, None))


def test_one_that_was_killed_for_memory_is_abnormal_whoever_is_left_and_whatever_else_is_said_of_it() -> None:
    for how in (end(1, oom=True), end(1, signal=15, oom=True), end(1, code=0, oom=True)):
        assert not is_ending(all_of(how)), how
        assert is_ending(all_of(msgspec.structs.replace(how, out_of_memory=None))), how


def test_a_hooked_rank_that_vanished_was_killed_only_while_more_than_half_of_its_job_lives() -> None:
    beat = heartbeat(0)
    for alive, ending in ((1, True), (2, True), (3, False)):
        assert is_ending(all_of(end(1), *[None] * alive, *[end(2)] * (3 - alive), beat=beat)) is ending


def test_half_of_a_job_that_left_in_order_is_a_job_that_leaves() -> None:
    """Fewer have left somebody who needs them."""
    left, failed = end(1, code=0), end(2, code=1)
    assert is_ending(all_of(left, left, failed, None))
    assert not is_ending(all_of(left, left, failed, None, None))
    assert is_ending(all_of(left, left, None, None, None)), "nobody failed"


def test_an_end_is_found_at_the_first_tick_with_the_step_that_its_hook_told() -> None:
    detector = ExitDetector(Config().tell)
    for beat, step in ((heartbeat(0, step=70), 70), (None, None)):
        seen = NodeHistory(snapshot(5, []), all_of(end(1, code=1), None, beat=beat))
        _, (finding,) = detector.step(detector.start(), seen)
        assert (finding.step, finding.limit_seconds, finding.since_ns) == (step, 0.0, START_NS + SECOND_NS)


@pytest.mark.parametrize(
    ("stirs_until", "went_on"),
    [(25.0, (0, 1, 3)), (21.0, ()), (60.0, ())],
    ids=["they go on for five seconds", "they stand at once", "they poll: what they wait for is not known"],
)
def test_without_a_hook_it_is_noted_who_went_on_after_a_rank_had_left(
    stirs_until: float, went_on: tuple[int, ...]
) -> None:
    def edit(second: float, rank: RankSample) -> RankSample:
        wakes = int(30 * min(second, stirs_until))
        shown = process(rank.rank, cpu_ticks=int(100 * min(second, 20)), main_thread_wakes=wakes)
        rank = msgspec.structs.replace(rank, heartbeat=Unavailable("no hook", START_NS))
        if rank.rank == 2 and second > 20.3:
            return msgspec.structs.replace(rank, end=end(20.3, code=0), process=Unavailable("gone", START_NS))
        return msgspec.structs.replace(rank, process=Known(shown, START_NS))

    _, finding = found(run(job_run(four(), 60, edit=edit)), "quiet")[-1]
    assert finding.ranks == (0, 1, 3)
    assert finding.went_on == went_on


Fields = dict[str, Any]


def trained(second: float, until: float) -> Fields:
    ticks = int(30 * min(second, until))
    return {"cpu_ticks": ticks, "main_thread_cpu_ticks": ticks, "main_thread_wakes": ticks}


def waits(wakes: int, ticks: int) -> Callable[[float], Fields]:
    """Since second 60: so many wakes and hundredths of a processor a second."""

    def fields(second: float) -> Fields:
        used = int(30 * min(second, 60) + ticks * max(second - 60, 0))
        return {
            "cpu_ticks": used,
            "main_thread_cpu_ticks": used,
            "main_thread_wakes": int(30 * min(second, 60) + wakes * max(second - 60, 0)),
        }

    return fields


def left_by_one(fields: Callable[[float], Fields], seconds: float) -> list[tuple[float, Detected]]:
    """A job without hooks that rank 2 leaves with 0 at 60.3."""

    def edit(second: float, rank: RankSample) -> RankSample:
        rank = msgspec.structs.replace(rank, heartbeat=Unavailable("no hook", START_NS))
        if rank.rank == 2 and second > 60.3:
            return msgspec.structs.replace(rank, end=end(60.3, code=0), process=Unavailable("gone", START_NS))
        return msgspec.structs.replace(rank, process=Known(process(rank.rank, **fields(second)), START_NS))

    return run(job_run(four(), seconds, edit=edit))


@pytest.mark.parametrize(
    "fields",
    [waits(0, 0), waits(0, 100), waits(10, 1), waits(100, 4), waits(100, 30), waits(30, 2)],
    ids=["stand", "spin", "poll", "poll as NCCL does", "poll and compute", "poll as often as training woke them"],
)
def test_without_a_hook_who_polls_or_spins_has_not_gone_on(fields: Callable[[float], Fields]) -> None:
    """The end was dropped for good, and most of these are never quiet."""
    detected = left_by_one(fields, 160)
    findings = found(detected, "exit")
    assert [second for second, _ in findings] == list(range(91, 161))
    assert {finding.went_on for _, finding in findings} == {()}
    assert detected[-1][1].jobs[0].ending


def test_without_a_hook_a_world_that_shrank_is_not_ending_and_stays_so_at_another_pace() -> None:
    def fields(second: float) -> Fields:
        anew = int(90 * max(second - 110, 0))
        return {name: count + anew for name, count in trained(second, 110).items()}

    detected = left_by_one(fields, 200)
    assert not found(detected, "exit")
    assert [one.jobs[0].ending for second, one in detected if second > 60.3] == [True] * 30 + [False] * 110


def test_a_signal_without_a_name_is_told_all_the_same() -> None:
    assert describe(end(1, signal=44)) == "signal 44 (a real-time one)"
