from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stallwatch.config_sections import StallSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.quiet import QuietDetector, QuietState
from stallwatch.model.gpu import Gpu
from stallwatch.model.process import ChildProcess
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import NodeSnapshot, ProcessEnd, RankSample, ThreadSample
from stallwatch.progress.outside import Counts, Outside
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import gpu_of, process, sample, snapshot
from tests.builders.running_job import found, four, job_run, run

Fields = Callable[[float, int], dict[str, Any]]


def hookless(fields: Fields, seconds: float = 100, late: tuple[float, ...] = ()) -> list[NodeSnapshot]:
    """A job without hooks; `fields` says what /proc shows of a rank at a second."""

    def edit(second: float, rank: RankSample) -> RankSample:
        shown = process(rank.rank, **fields(second, rank.rank))
        return msgspec.structs.replace(rank, heartbeat=Unavailable("no hook", START_NS), process=Known(shown, START_NS))

    shots = job_run(four(), seconds, edit=edit)
    return [msgspec.structs.replace(shot, late_seconds=20.0) if shot.tick in late else shot for shot in shots]


def works_until(last: float) -> Fields:
    return lambda second, rank: {"cpu_ticks": int(100 * min(second, last))}


def test_job_that_worked_and_no_longer_does_is_looked_at_after_half_a_minute() -> None:
    findings = found(run(hookless(works_until(20))), "quiet")
    assert [(second, finding.stage) for second, finding in findings[:3]] == [
        (50, "suspect"), (51, "suspect"), (52, "confirmed")
    ]  # fmt: skip
    assert findings[0][1].ranks == (0, 1, 2, 3)
    assert "stallwatch.attach()" in findings[0][1].reason


def test_who_trained_with_next_to_no_processor_time_is_quiet_since_it_no_longer_keeps_its_pace() -> None:
    """A step took 4 ms of 90 on a crowded machine: of a pause of 100 s it was told after 100 s as of one of 120 s."""

    def trains_lightly(second: float, rank: int) -> dict[str, Any]:
        ticks = int(10 * min(second, 40) + 3 * min(max(second - 40, 0), 20))
        return {"cpu_ticks": ticks, "main_thread_cpu_ticks": ticks, "main_thread_wakes": int(12 * min(second, 60))}

    findings = found(run(hookless(trains_lightly, 120)), "quiet")
    assert findings[0][0] == 90
    assert {(finding.since_ns - START_NS) / 1e9 for _, finding in findings} == {60}


@pytest.mark.parametrize(
    ("every", "wakes", "ticks"),
    [(20, 1, 5), (30, 1, 15), (20, 6, 0), (10, 6, 0), (4, 6, 0), (40, 30, 20)],
    ids=["a log line", "a callback", "it is woken", "more often", "yet more often", "as in half a second of training"],
)
def test_what_a_rank_does_now_and_then_while_it_stands_ends_no_standstill(every: int, wakes: int, ticks: int) -> None:
    """The finding came for five seconds at a time, and its incident began and ended again and again."""

    def stands(second: float, rank: int) -> dict[str, Any]:
        trained, times = int(30 * min(second, 60)), int(max(second - 60, 0) // every) * (rank == 0)
        used = trained + times * ticks
        return {"cpu_ticks": used, "main_thread_cpu_ticks": used, "main_thread_wakes": trained + times * wakes}

    findings = found(run(hookless(stands, 200)), "quiet")
    assert [second for second, _ in findings] == list(range(90, 201))
    assert {(finding.since_ns - START_NS) / 1e9 for _, finding in findings} == {60}


def test_who_polls_is_quiet_since_it_no_longer_works() -> None:
    def polls(second: float, rank: int) -> dict[str, Any]:
        ticks = int(100 * min(second, 20))
        return {"cpu_ticks": ticks, "main_thread_cpu_ticks": ticks, "main_thread_wakes": int(10 * second)}

    assert (found(run(hookless(polls)), "quiet")[-1][1].since_ns - START_NS) / 1e9 == 20


def test_one_rank_that_works_is_a_job_that_works() -> None:
    assert not found(run(hookless(lambda second, rank: {"cpu_ticks": int(100 * second) * (rank == 2)})), "quiet")


def test_polling_is_no_work_and_reading_is() -> None:
    assert found(run(hookless(lambda second, rank: {"cpu_ticks": int(2 * second)})), "quiet")
    assert not found(run(hookless(lambda second, rank: {"read_bytes": int(second * (1 << 20))})), "quiet")


def test_a_child_that_works_is_the_ranks_own_work() -> None:
    def compiles(second: float, rank: int) -> dict[str, Any]:
        return {"children": (ChildProcess(7, "R", "cc1plus", int(100 * second)),)}

    assert not found(run(hookless(compiles)), "quiet")


def test_time_in_which_we_did_not_look_is_not_counted() -> None:
    first = found(run(hookless(works_until(20), 85, late=(40, 60))), "quiet")
    assert not first


def test_job_with_a_hook_is_watched_by_what_that_says() -> None:
    assert not found(run(job_run(four(counts_steps=False), 100)), "quiet")


def test_rank_that_cannot_be_read_is_unknown_and_not_quiet() -> None:
    shots = [
        msgspec.structs.replace(
            shot,
            ranks=tuple(
                msgspec.structs.replace(rank, process=Unavailable("not ours", START_NS)) if rank.rank == 3 else rank
                for rank in shot.ranks
            ),
        )
        for shot in hookless(works_until(20))
    ]
    assert not found(run(shots), "quiet")


def test_a_tick_at_which_it_cannot_be_read_forgets_nothing() -> None:
    gap = [
        msgspec.structs.replace(
            shot, ranks=tuple(msgspec.structs.replace(r, process=Unavailable("late", START_NS)) for r in shot.ranks)
        )
        if 35 <= tick <= 37
        else shot
        for tick, shot in enumerate(hookless(works_until(20), 70))
    ]
    steps = run(gap)
    assert found(steps, "quiet")
    assert steps[-1][1].jobs[0].begun


def test_our_own_pause_for_a_stack_is_no_work() -> None:
    """A look holds a rank by ptrace for milliseconds, at load for longer, and a tick may see it so: a suspicion was
    dropped by that, with what the look had seen, and the job still stood."""

    def held(second: float, rank: int) -> dict[str, Any]:
        tracer = {"state": "t", "main_thread_state": "t", "tracer_pid": 99} if rank == 0 and second in (53, 54) else {}
        return works_until(20)(second, rank) | tracer

    findings = found(run(hookless(held, 70)), "quiet")
    assert [second for second, _ in findings] == list(range(50, 71))
    assert {finding.stage for second, finding in findings if second >= 52} == {"confirmed"}


def test_time_under_a_debugger_is_not_counted() -> None:
    def debugged(second: float, rank: int) -> dict[str, Any]:
        tracer = {"state": "t", "tracer_pid": 99} if rank == 0 and 30 < second <= 80 else {}
        return works_until(20)(second, rank) | tracer

    assert found(run(hookless(debugged, 110)), "quiet")[0][0] == 100


def on_gpus(seconds: float, fields: Fields, memory_at: Callable[[float], int]) -> list[NodeSnapshot]:
    """A job without hooks on GPUs; `fields` says what /proc shows of a rank, `memory_at` what the GPUs' memory does."""

    def gpus(tick: int) -> tuple[Gpu, ...]:
        memory = memory_at(tick)
        return tuple(
            gpu_of(rank, utilization_percent=100, memory_utilization_percent=memory, power_watts=170.0)
            for rank in range(4)
        )

    shots = hookless(fields, seconds)
    return [msgspec.structs.replace(shot, gpus=Known(gpus(tick), shot.at_ns)) for tick, shot in enumerate(shots)]


def spins_from(began: float, absent: int = 1) -> Fields:
    """Training until then; then all but one spin, with a proxy that spins beside, and one sleeps."""

    def fields(second: float, rank: int) -> dict[str, Any]:
        main = second if rank != absent else min(second, began)
        wakes = 80 * min(second, began) + 0.4 * second
        return {
            "main_thread_cpu_ticks": int(100 * main),
            "main_thread_wakes": int(wakes),
            "cpu_ticks": int(100 * (main + second)),
        }

    return fields


def test_a_wait_under_nccl_is_seen_though_its_threads_spin() -> None:
    findings = found(run(on_gpus(120, spins_from(20), lambda second: 30 if second < 20 else 0)), "quiet")
    assert 50 <= findings[0][0] <= 52
    assert findings[0][1].ranks == (0, 1, 2, 3)


def test_it_is_seen_when_the_driver_no_longer_answers_either() -> None:
    shots = [
        msgspec.structs.replace(shot, gpus=Unavailable("NVML has not answered for 40 s", START_NS))
        if tick > 21
        else shot
        for tick, shot in enumerate(on_gpus(120, spins_from(20), lambda second: 0))
    ]
    assert found(run(shots), "quiet")


def trains(second: float, rank: int) -> dict[str, Any]:
    ticks = int(100 * second)
    return {"main_thread_cpu_ticks": ticks, "main_thread_wakes": int(60 * second), "cpu_ticks": 4 * ticks}


@pytest.mark.parametrize(
    "shots",
    [
        on_gpus(150, spins_from(20), lambda second: 20),
        on_gpus(150, trains, lambda second: 0),
        hookless(spins_from(20), 150),
    ],
    ids=["its memory is used", "its threads wake", "it has no GPU, and computes"],
)
def test_what_works_is_not_looked_at(shots: list[NodeSnapshot]) -> None:
    assert not found(run(shots), "quiet")


def test_one_tick_with_a_little_cpu_is_no_work() -> None:
    """A look of ours pauses it and has its pages read; a log line."""
    assert found(
        run(hookless(lambda second, rank: {"cpu_ticks": int(100 * min(second, 20)) + 9 * int(second / 12)})), "quiet"
    )


def test_other_threads_neither_hide_a_standstill_nor_prove_one() -> None:
    """A metrics thread computes beside a main thread that stands; and a main thread that always waits for another."""

    def beside(main_until: float) -> Fields:
        return lambda second, rank: {
            "main_thread_cpu_ticks": int(100 * min(second, main_until)), "cpu_ticks": int(100 * second),
        }  # fmt: skip

    assert found(run(hookless(beside(20))), "quiet")
    assert not found(run(hookless(beside(0))), "quiet")


def little(second: float, rank: int, until: float) -> dict[str, Any]:
    """A training thread at 0.8 % of a core until it stands; a recorder beside it."""
    trained, beside = int(8_000_000 * min(second, until)), int(80_000_000 * second)
    return {
        "main_thread_cpu_ticks": trained // 10**7,
        "cpu_ticks": (trained + beside) // 10**7,
        "busiest_threads": (ThreadSample(1000 + rank, trained), ThreadSample(2000 + rank, beside)),
    }


def test_a_recorder_hides_no_standstill_of_training_that_takes_next_to_nothing() -> None:
    findings = found(run(hookless(lambda second, rank: little(second, rank, 20))), "quiet")
    assert [(second, finding.stage) for second, finding in findings[:3]] == [
        (50, "suspect"), (51, "suspect"), (52, "confirmed")
    ]  # fmt: skip
    assert not found(run(hookless(lambda second, rank: little(second, rank, 20 if rank else 200))), "quiet")


def one_goes_on(
    trained: float, pause: tuple[float, float] = (0, 0), *, gloo: bool = True, who: tuple[int, ...] = (2,)
) -> Fields:
    """Training with collectives under gloo until then; then rank 2 computes, but for a pause, and the others wait."""

    def fields(second: float, rank: int) -> dict[str, Any]:
        passed = second - min(max(second - pause[0], 0), pause[1] - pause[0])
        main = int(300_000_000 * min(second, trained))
        main += int(1_000_000_000 * max(passed - trained, 0)) if rank in who else 0
        gloo_thread = int(20_000_000 * min(second, trained))
        return {
            "main_thread_cpu_ticks": main // 10**7,
            "cpu_ticks": (main + gloo_thread) // 10**7,
            "busiest_threads": (
                ThreadSample(1000 + rank, main),
                ThreadSample(2000 + rank, gloo_thread, communicates=gloo),
            ),
        }

    return fields


def test_who_works_on_alone_while_all_others_wait_is_looked_at_after_a_minute() -> None:
    """A loop that never ends on the CPU, or steps without their collective: nobody looked, ever."""
    findings = found(run(hookless(one_goes_on(30), 150)), "quiet")
    assert [(second, finding.stage) for second, finding in findings[:3]] == [
        (90, "suspect"), (91, "suspect"), (92, "confirmed")
    ]  # fmt: skip
    first = findings[0][1]
    assert (first.ranks, (first.since_ns - START_NS) / 1e9) == ((0, 1, 3), 30)
    assert "rank 2, which works on" in first.reason


def test_its_age_is_counted_from_when_it_works_on() -> None:
    """All waited for storage, say, and it has what it read now: its work is of the moment."""
    findings = found(run(hookless(one_goes_on(30, pause=(30, 55)), 150)), "quiet")
    assert next(second for second, _ in findings if second > 57) == 116
    assert (findings[-1][1].since_ns - START_NS) / 1e9 == 56


def test_two_of_four_that_work_on_while_the_others_wait_are_looked_at_too() -> None:
    """Two that compute for ever, each for a reason of its own, or both for one: nobody looked, ever."""
    findings = found(run(hookless(one_goes_on(30, who=(1, 2)), 150)), "quiet")
    assert findings[0][0] == 90
    assert findings[0][1].ranks == (0, 3)
    assert "no rank here but ranks 1-2, which work on," in findings[0][1].reason


def test_most_of_a_job_may_go_on_without_the_rest() -> None:
    """Spares, an evaluator, a driver: who waits for them is not known."""
    assert not found(run(hookless(one_goes_on(30, who=(0, 1, 2)), 200)), "quiet")


@pytest.mark.parametrize("every", [8, 15, 28])
def test_who_works_now_and_then_while_all_others_wait_is_looked_at_after_a_minute_and_a_half(every: int) -> None:
    """It tries a dear call each quarter of a minute: at no tick was it quiet for long, and at none did it work on."""

    def tries(second: float, rank: int) -> dict[str, Any]:
        times = int(max(second - 30, 0)) // every
        return one_goes_on(30)(min(second, 30) + times if rank == 2 else second, rank)

    findings = found(run(hookless(tries, 240)), "quiet")
    assert findings[0][0] == 120
    assert [second for second, _ in findings] == list(range(120, 241))
    assert {(finding.since_ns - START_NS) / 1e9 for _, finding in findings} == {30}
    assert all("rank 2, which works on" in finding.reason for _, finding in findings)


def test_who_is_stopped_does_not_work_on() -> None:
    """'No rank here but rank 2, which works on, has computed', of one that a signal had stopped."""

    def stopped(second: float, rank: int) -> dict[str, Any]:
        held = {"state": "T", "main_thread_state": "T"} if rank == 2 and second > 40 else {}
        return one_goes_on(30)(min(second, 30) if rank == 2 else second, rank) | held

    assert not found(run(hookless(stopped, 150)), "quiet")


def test_who_works_alone_before_collectives_were_seen_for_long_is_not_looked_at() -> None:
    """Rank 0 prepares the data for all, who have loaded and met in a barrier; nothing tells who waits for whom."""
    assert not found(run(hookless(one_goes_on(5), 150)), "quiet")
    assert not found(run(hookless(one_goes_on(30, gloo=False), 150)), "quiet")


def test_a_job_that_was_never_seen_to_work_has_not_begun() -> None:
    idle = run(hookless(lambda second, rank: {}, 80))
    assert not idle[-1][1].jobs[0].begun
    assert not idle[-1][1].jobs[0].hooked
    assert run(hookless(works_until(20), 80))[-1][1].jobs[0].begun


def test_it_is_for_jobs_without_hooks_and_can_be_turned_off() -> None:
    quiet = Outside(START_NS, Counts(0, 0, None, 0, 0, None), worked_ticks=100)
    alone = RankHistory(sample(0, None), START_NS, outside=quiet)
    hooked = RankHistory(sample(1, heartbeat(1)), START_NS, heartbeat(1), outside=quiet)
    ended = RankHistory(sample(1, None, end=ProcessEnd(START_NS, 0, None, "zombie", None)), START_NS)

    def found_in(*ranks: RankHistory, enabled: bool = True) -> list[tuple[int, ...]]:
        detector = QuietDetector(msgspec.structs.replace(StallSection(), enabled=enabled))
        _, findings = detector.step(QuietState(), NodeHistory(snapshot(30, []), ranks))
        return [finding.ranks for finding in findings]

    assert found_in(alone) == [(0,)]
    assert found_in(alone, ended) == [(0,)]
    assert found_in(alone, hooked) == found_in(ended) == found_in(alone, enabled=False) == []
