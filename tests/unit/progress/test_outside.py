"""Whether a process without a hook works, by counters of /proc and its GPU."""

from typing import Any

import pytest

from stallwatch.model.gpu import Gpu
from stallwatch.model.process import ChildProcess
from stallwatch.model.snapshot import ThreadSample
from stallwatch.progress.outside import Outside, seen_from_outside
from tests.builders.heartbeat import START_NS
from tests.builders.node import process

SECOND = 1_000_000_000


def after(*looks: dict[str, Any], gpu: Gpu | None = None, late: dict[int, int] | None = None) -> Outside:
    """A look a second; each says what is different from nothing."""
    seen = None
    for second, look in enumerate(looks):
        late_ns = (late or {}).get(second, 0) * SECOND
        seen = seen_from_outside(seen, process(0, **look), gpu, START_NS + second * SECOND, late_ns)
    assert seen is not None
    return seen


def quiet_seconds(*looks: dict[str, Any], gpu: Gpu | None = None, late: dict[int, int] | None = None) -> float:
    seen = after(*looks, gpu=gpu, late=late)
    return (seen.at_ns - seen.quiet_since_ns) / SECOND


def busy(seconds: int, ticks: int = 100, **more: int) -> list[dict[str, Any]]:
    return [
        {
            "cpu_ticks": ticks * second,
            "main_thread_cpu_ticks": ticks * second,
            **{k: v * second for k, v in more.items()},
        }
        for second in range(seconds)
    ]


def test_what_was_never_read_is_unknown_and_what_is_not_read_now_stays_as_it_was() -> None:
    assert seen_from_outside(None, None, None, START_NS, 0) is None
    seen = after({}, {})
    assert seen_from_outside(seen, None, None, START_NS + 9 * SECOND, 0) is seen


def test_a_quiet_process_is_quiet_since_it_was_seen() -> None:
    assert quiet_seconds({}, {}, {}) == 2
    assert quiet_seconds({}, {"cpu_ticks": 2}, {"cpu_ticks": 4}) == 2, "it polls"


@pytest.mark.parametrize(
    "look",
    [
        {"cpu_ticks": 100},
        {"read_bytes": 1 << 20},
        {"write_bytes": 1 << 20},
        {"state": "T"},
        {"state": "Z"},
        {"children": (ChildProcess(7, "R", "cc1plus", 100),)},
    ],
)
def test_work_of_any_kind_ends_it(look: dict[str, Any]) -> None:
    assert quiet_seconds({}, {}, look) == 0


def test_programs_that_a_child_ran_to_their_end_are_work_from_half_a_core_on() -> None:
    def shell(reaped: int) -> list[dict[str, Any]]:
        return [
            {"children": (ChildProcess(7, "S", "sh", 5, reaped_ticks=9_000 + reaped * second),)} for second in range(6)
        ]

    assert quiet_seconds(*shell(9)) == 5, "a loop that polls by a program"
    assert quiet_seconds(*shell(49)) == 5
    assert quiet_seconds(*shell(50)) == 0


def test_a_little_work_is_work_when_it_comes_twice() -> None:
    assert quiet_seconds({}, {"cpu_ticks": 10}) == 1, "a log line, or our own look"
    assert quiet_seconds({}, {"cpu_ticks": 10}, {"cpu_ticks": 20}) == 0
    assert quiet_seconds({}, {"cpu_ticks": 10}, {"cpu_ticks": 10}, {"cpu_ticks": 20}) == 3
    assert quiet_seconds({}, {"cpu_ticks": 21}) == 0


def test_time_in_which_we_were_late_is_no_time_of_quiet() -> None:
    assert quiet_seconds({}, {}, {}, late={2: 2}) == 0
    assert quiet_seconds({}, {}, {}, {}, late={2: 1}) == 2


def test_the_main_thread_is_judged_once_it_was_seen_to_work() -> None:
    worked = busy(12)
    others = {"cpu_ticks": 1300, "main_thread_cpu_ticks": 1100}
    assert quiet_seconds(*worked, others) == 1, "a metrics thread"
    assert quiet_seconds(*worked[:5], {**others, "main_thread_cpu_ticks": 400}) == 0, "nobody knows yet who works"
    assert after(*worked).has_worked
    assert not after(*worked[:10]).has_worked


def test_what_other_threads_read_and_write_is_theirs_once_the_main_thread_was_seen_to_work() -> None:
    """A recorder of episodes, a prefetcher: it goes on whatever training does."""
    worked = busy(12, main_thread_moved_bytes=1 << 20, read_bytes=2 << 20)
    stands = {**worked[-1], "read_bytes": 30 << 20}
    assert quiet_seconds(*worked, stands) == 1
    assert quiet_seconds(*worked, {**stands, "main_thread_moved_bytes": 30 << 20}) == 0
    assert quiet_seconds(*worked[:5], {**worked[4], "read_bytes": 30 << 20}) == 0, "nobody knows yet who works"
    unknown = [{key: value for key, value in look.items() if "moved" not in key} for look in (*worked, stands)]
    assert quiet_seconds(*unknown) == 0, "whose they are is not known"


def test_what_a_child_does_all_the_time_is_no_work_of_the_rank() -> None:
    """A collector of metrics; a compiler comes once, and a loader's worker has far more to do than usual, once."""

    def child(ticks: int) -> tuple[ChildProcess, ...]:
        return (ChildProcess(7, "S", "python", ticks),)

    trained = [{**look, "children": child(30 * second)} for second, look in enumerate(busy(30))]
    stands = [{**trained[-1], "children": child(30 * (29 + second))} for second in range(1, 6)]
    assert quiet_seconds(*trained, *stands) == 5
    more = [{**trained[-1], "children": child(30 * 29 + 100 * second)} for second in range(1, 6)]
    assert quiet_seconds(*trained, *more) == 0
    alone = [{**busy(30)[-1], "children": child(30 * second)} for second in range(1, 6)]
    assert quiet_seconds(*busy(30), *alone) == 0, "it was not there while training went on"


def gpu(memory: int | None) -> Gpu:
    return Gpu(index=0, uuid="GPU-0", memory_utilization_percent=memory)


def test_a_main_thread_that_spins_for_its_gpu_does_no_work() -> None:
    spins = busy(6, main_thread_wakes=0)
    assert quiet_seconds(*spins, gpu=gpu(0)) == 5
    assert quiet_seconds(*spins, gpu=gpu(None)) == 5
    assert quiet_seconds(*spins, gpu=gpu(1)) == 5
    assert quiet_seconds(*spins, gpu=gpu(2)) == 0, "its memory is read and written"
    assert quiet_seconds(*busy(6, main_thread_wakes=6), gpu=gpu(0)) == 0, "it sleeps now and then: it trains"
    assert quiet_seconds(*busy(6, main_thread_wakes=5), gpu=gpu(0)) == 5
    assert quiet_seconds(*spins) == 0, "without a GPU it computes"
    unknown = [{**look, "main_thread_wakes": None} for look in spins]
    assert quiet_seconds(*unknown, gpu=gpu(0)) == 0, "how often it slept nobody knows"


def test_a_gpu_that_the_driver_names_no_more_is_still_one() -> None:
    seen = after(*busy(3, main_thread_wakes=0), gpu=gpu(0))
    spins = busy(5, main_thread_wakes=0)[-1]
    later = seen_from_outside(seen, process(0, **spins), None, START_NS + 3 * SECOND, 0)
    assert later is not None
    assert (later.has_gpu, later.at_ns - later.quiet_since_ns) == (True, 3 * SECOND)


def test_what_is_house_keeping_and_what_is_work() -> None:
    """Three ticks of a hundredth of a second, 64 KiB: a heartbeat, a log line."""
    assert quiet_seconds({}, {"cpu_ticks": 3}, {"cpu_ticks": 6}) == 2
    assert quiet_seconds({}, {"cpu_ticks": 4}, {"cpu_ticks": 8}) == 0
    assert quiet_seconds({}, {"cpu_ticks": 20}) == 1
    assert quiet_seconds({}, {"read_bytes": 64 << 10}) == 1
    assert quiet_seconds({}, {"read_bytes": (64 << 10) + 1}) == 0
    assert quiet_seconds({}, {"read_bytes": 40 << 10, "write_bytes": 40 << 10}) == 0


def test_what_it_had_done_before_is_no_work_now() -> None:
    compiler = (ChildProcess(7, "S", "cc1plus", 100),)
    done = {"read_bytes": 1 << 30, "write_bytes": 1 << 30, "cpu_ticks": 9_000, "children": compiler}
    assert quiet_seconds(done, done, done) == 2


def test_ten_ticks_of_work_make_a_process_and_a_thread_that_worked() -> None:
    assert [after(*busy(looks)).has_worked for looks in (10, 11)] == [False, True]
    assert after(*[{"cpu_ticks": 4 * second} for second in range(11)]).has_worked, "little, and again and again"
    for looks, seconds in ((10, 0), (11, 1)):
        others = {"cpu_ticks": 100 * looks, "main_thread_cpu_ticks": 100 * (looks - 1)}
        assert quiet_seconds(*busy(looks), others) == seconds


def test_one_that_trained_and_spins_now_is_quiet() -> None:
    trained = busy(12, main_thread_wakes=50)
    spins = [{"cpu_ticks": ticks, "main_thread_cpu_ticks": ticks, "main_thread_wakes": 550} for ticks in (1200, 1300)]
    assert quiet_seconds(*trained, *spins, gpu=gpu(0)) == 2
    assert quiet_seconds(*trained, *spins) == 0


def test_one_whose_main_thread_rests_is_no_spinner() -> None:
    rests = [{"cpu_ticks": 100 * second, "main_thread_wakes": 0} for second in range(4)]
    assert quiet_seconds(*rests, gpu=gpu(0)) == 0, "its other threads work"
    assert not after({}, {"main_thread_wakes": 0}).worked_ticks
    known_now = [{}, {"cpu_ticks": 100, "main_thread_cpu_ticks": 100, "main_thread_wakes": 3}]
    assert quiet_seconds(*known_now, gpu=gpu(0)) == 0, "how often it slept before nobody knows"
    assert (
        quiet_seconds(
            known_now[1] | {"cpu_ticks": 0, "main_thread_cpu_ticks": 0},
            known_now[0] | {"cpu_ticks": 100, "main_thread_cpu_ticks": 100},
            gpu=gpu(0),
        )
        == 0
    )


def light(
    trains: int, stands: int, *, others: int = 8, child: int = 0, writes: int = 0, milliseconds: int = 8
) -> list[dict[str, Any]]:
    """A main thread that does little and then nothing, beside a thread and a child that go on, in ticks a second."""

    def look(second: int) -> dict[str, Any]:
        main = milliseconds * min(second, trains)
        return {
            "cpu_ticks": main // 10 + others * second,
            "main_thread_cpu_ticks": main // 10,
            "main_thread_moved_bytes": 0,
            "write_bytes": writes * second,
            "children": (ChildProcess(7, "S", "python", child * second),),
            "busiest_threads": (ThreadSample(1000, main * 1_000_000), ThreadSample(1001, others * 10_000_000 * second)),
        }

    return [look(second) for second in range(trains + stands + 1)]


def test_a_main_thread_that_does_little_is_judged_by_what_it_usually_does() -> None:
    assert quiet_seconds(*light(20, 0)) == 0
    assert quiet_seconds(*light(20, 9)) == 9
    assert quiet_seconds(*light(5, 9)) == 0, "nobody knows yet who works"
    untold = [{**look, "busiest_threads": ()} for look in light(20, 9)]
    assert quiet_seconds(*untold) == 0, "the kernel does not tell what threads do"


def test_what_children_and_threads_do_as_ever_beside_a_light_main_thread_is_no_work() -> None:
    assert quiet_seconds(*light(12, 9, child=10)) == 9
    assert quiet_seconds(*light(20, 9, writes=1 << 20)) == 9
    trained = light(20, 0, child=10)
    more = [{**trained[-1], "children": (ChildProcess(7, "R", "python", 200 + 50 * n),)} for n in range(1, 5)]
    assert quiet_seconds(*trained, *more) == 0, "a loader's worker has more to do than usual"


@pytest.mark.parametrize("tracer_pid", [9, 0], ids=["a debugger", "a look of ours, which sensors do not call a tracer"])
def test_a_rank_that_a_look_holds_keeps_what_is_known_of_its_threads(tracer_pid: int) -> None:
    trained = light(20, 3)
    held = {**trained[-1], "state": "t", "tracer_pid": tracer_pid}
    assert quiet_seconds(*trained, held, held, trained[-1]) == 4
