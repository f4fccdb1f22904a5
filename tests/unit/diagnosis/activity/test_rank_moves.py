"""Whether a rank moves between two looks."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from stallwatch.diagnosis.activity import RankActivity, read_activity
from stallwatch.diagnosis.activity.doing import IN_A_TEAM, STARVES
from stallwatch.model.evidence import (
    ChildProcess,
    GroupStatus,
    ProcessLook,
    Recorder,
    SourceBlock,
    SourceLine,
    ThreadState,
)
from tests.builders.rank_evidence import (
    C10D,
    LOADER,
    MODULE,
    PID,
    STEP,
    WAITS,
    issued_by,
    operation_of,
    own_record,
    process,
    rank,
    stack,
    stacks,
    thread,
)


def looks(
    first: tuple[str, ...],
    second: tuple[str, ...],
    *,
    state: str = "S",
    wchan: str | None = "futex_do_wait",
    ticks: tuple[int | None, int | None] = (None, None),
    before: Mapping[str, Any] = MappingProxyType({}),
    after: Mapping[str, Any] = MappingProxyType({}),
    owns_gil: bool = False,
    **fields: Any,
) -> RankActivity:
    """Two looks five seconds apart; `before` and `after` are fields of the process looks."""
    return read_activity(
        rank(
            stacks=(
                stacks(thread(stack(*first), active=state == "R", owns_gil=owns_gil)),
                stacks(thread(stack(*second), active=state == "R", owns_gil=owns_gil), look=2, source="stacks-2.json"),
            ),
            processes=(
                process(state, wchan, look=1, ticks=ticks[0], at_seconds=10, **before),
                process(state, wchan, look=2, ticks=ticks[1], at_seconds=15, **after),
            ),
            **fields,
        )
    )


def test_one_look_cannot_tell_motion() -> None:
    assert read_activity(rank(stack(*WAITS), "S", "futex_do_wait")).progress.moving is None


def test_the_same_stack_twice_stands_still() -> None:
    assert looks(WAITS, WAITS).progress.moving is False


def test_another_stack_moves() -> None:
    assert looks(WAITS, ("store@JOB:40", *STEP)).progress.moving is True


def test_another_line_of_a_caller_moves() -> None:
    assert (
        looks(WAITS, ("Condition.wait@PY/threading.py:327", "load@JOB:7", "step@JOB:21", MODULE)).progress.moving
        is True
    )


def test_a_poll_inside_a_wait_does_not_move() -> None:
    poll = ("get@PY/multiprocessing/queues.py:113", f"_try_get_data@{LOADER}:1290", f"__next__@{LOADER}:1", *STEP)
    again = (f"_try_get_data@{LOADER}:1310", f"_get_data@{LOADER}:1480", f"__next__@{LOADER}:1", *STEP)
    assert looks(poll, again, wchan="do_poll").progress.moving is False


def test_a_loop_that_polls_between_two_lines_is_not_judged() -> None:
    assert (
        looks(("wait_for_file@JOB:7", *STEP), ("wait_for_file@JOB:8", *STEP), wchan="hrtimer_nanosleep").progress.moving
        is None
    )


def test_a_busy_loop_is_not_judged_by_being_busy() -> None:
    activity = looks(STEP, STEP, state="R", wchan=None, ticks=(100, 590))
    assert (activity.place.where, activity.progress.moving) == ("busy_loop", None)
    assert activity.progress.cpu_share == pytest.approx(0.98)


@pytest.mark.parametrize("owns_gil", [False, True])
def test_who_is_ready_to_run_and_has_no_turn_does_not_compute(owns_gil: bool) -> None:
    """A limit of processor time, or a neighbour of higher priority on the one core: runnable at both looks, and of five
    seconds it ran for some hundredths. It keeps the GIL meanwhile, and its hook has no turn either."""
    beat = own_record(pulse_ns=1, pulse_count=7)
    activity = looks(STEP, STEP, state="R", wchan=None, ticks=(100, 103), owns_gil=owns_gil, heartbeat=(beat, beat))
    assert (activity.place.where, activity.place.detail) == ("busy_loop", STARVES)
    assert activity.progress.ends_by_itself == "compute"
    for ticks in ((100, 150), (None, 103)):
        assert looks(STEP, STEP, state="R", wchan=None, ticks=ticks).place.detail != STARVES
    assert looks(STEP, STEP, wchan=None, ticks=(100, 103)).place.detail != STARVES
    waits = looks(WAITS, WAITS, state="R", wchan=None, ticks=(100, 101))
    assert waits.place.where == "lock", "a wait is one whoever takes its turn"


NORMALIZES = ("normalize@TORCH/nn/functional.py:6101", *STEP)


def _team(wakes: tuple[int, int, int]) -> dict[str, Any]:
    """Its main thread, one of OpenMP's and one of gloo's, and how often they have slept so far."""
    named = zip((PID, PID + 9, PID + 3), ("python", "python", "gloo_tcp_loop"), wakes, strict=True)
    return {"threads": tuple(ThreadState(tid, name, "S", 9, "futex_do_wait", wakes=n) for tid, name, n in named)}


def test_who_meets_threads_of_native_code_again_and_again_computes() -> None:
    """More threads of OpenMP than cores, measured: at both looks the main thread sleeps at the barrier of a parallel
    loop, and 276 of these ended in five seconds. That may be a loop for ever; a wait for communication it is not."""
    before, after = _team((7111, 8813, 3492)), _team((7387, 9140, 3682))
    told = looks(NORMALIZES, NORMALIZES, before=before, after=after)
    assert (told.place.where, told.place.detail, told.call.in_collective) == ("busy_loop", IN_A_TEAM, False)
    assert (told.progress.moving, told.progress.ends_by_itself) == (None, "compute")


@pytest.mark.parametrize("after", [(7121, 8823, 3682), (7387, 8820, 3682)], ids=["seldom", "alone"])
def test_who_sleeps_on_or_polls_alone_may_wait_for_communication(after: tuple[int, int, int]) -> None:
    told = looks(NORMALIZES, NORMALIZES, before=_team((7111, 8813, 3492)), after=_team(after))
    assert (told.place.where, told.call.in_collective) == ("collective", None)
    collective = (f"all_reduce@{C10D}:1", *STEP)
    waits = looks(collective, collective, before=_team((7111, 8813, 3492)), after=_team((7387, 9140, 3682)))
    assert waits.call.in_collective is True


def test_cpu_of_the_blocking_thread_moves_and_of_other_threads_does_not() -> None:
    checkpoint = ("save@TORCH/serialization.py:1", *STEP)
    assert looks(checkpoint, checkpoint, wchan="io_schedule", ticks=(100, 200)).progress.moving is True
    spinning = {"cpu_ticks": 9000}
    assert looks(WAITS, WAITS, ticks=(100, 101), after=spinning).progress.moving is False


def test_a_spinning_wait_for_the_gpu_does_not_move() -> None:
    sync = ("synchronize@TORCH/cuda/__init__.py:1", *STEP)
    assert looks(sync, sync, state="R", wchan=None, ticks=(100, 600)).progress.moving is False


def test_written_bytes_move_a_checkpoint_but_not_a_collective() -> None:
    first, second = {"write_bytes": 0}, {"write_bytes": 300 << 20}
    checkpoint = ("save@TORCH/serialization.py:1", *STEP)
    assert looks(checkpoint, checkpoint, wchan="io_schedule", before=first, after=second).progress.moving is True
    collective = (f"all_reduce@{C10D}:1", *STEP)
    assert looks(collective, collective, before=first, after=second).progress.moving is False


def test_working_children_move_a_rank_that_waits_for_them() -> None:
    first = {"children": (ChildProcess(801, "R", "ninja", 10),)}
    second = {"children": (ChildProcess(801, "R", "ninja", 400),)}
    compiles = ("communicate@PY/subprocess.py:1", "_run_ninja_build@TORCH/utils/cpp_extension.py:2", *STEP)
    assert looks(compiles, compiles, wchan="pipe_read", before=first, after=second).progress.moving is True
    assert looks(WAITS, WAITS, before=first, after=second).progress.moving is False


@pytest.mark.parametrize(
    ("wchan", "wakes", "moving"),
    [
        ("request_wait_answer", 240, True),  # small files of a mounted store: kilobytes, and each an answer
        ("nfs_wait_bit_killable", 240, True),
        ("request_wait_answer", 202, False),  # our own pauses
        ("futex_do_wait", 240, False),
    ],
)
def test_a_file_system_that_answers_moves_whoever_waits_for_it(wchan: str, wakes: int, moving: bool) -> None:
    def look(number: int, so_far: int) -> ProcessLook:
        main = ThreadState(PID, "python", "S", 0, wchan, wakes=so_far, own_wakes=2 if number == 1 else 0)
        return process("S", wchan, look=number, at_seconds=5 * number, threads=(main,))

    reads = thread(stack("read_shard@JOB:30", "<module>@JOB:4"))
    told = rank(stacks=tuple(stacks(reads, look=n) for n in (1, 2)), processes=(look(1, 200), look(2, wakes)))
    assert read_activity(told).progress.moving is moving


@pytest.mark.parametrize(
    ("header", "moving"),
    [
        ("while converter.poll() is None:", True),
        ("while any(worker.is_alive() for worker in workers):", True),
        ("while not marker.exists():", False),  # whoever makes it is no child of this rank's
    ],
)
def test_a_child_that_is_asked_again_and_again_is_waited_for(header: str, moving: bool) -> None:
    frames = stack("convert@JOB:30", "<module>@JOB:4")
    ((file, line),) = {(frame.filename, frame.line) for frame in frames if frame.name == "convert"}
    lines = (SourceLine(file, line, "time.sleep(1.0)", (SourceBlock("while", 29, header),)),)
    told = rank(
        stacks=tuple(stacks(thread(frames), look=look) for look in (1, 2)),
        processes=tuple(
            process("S", "hrtimer_nanosleep", look=look, children=(ChildProcess(801, "R", "convert", 300 * look),))
            for look in (1, 2)
        ),
        sources=lines,
    )
    assert read_activity(told).progress.moving is moving


_FOR = (SourceBlock("for", 29, "for batch in batches:"),)


@pytest.mark.parametrize(
    ("sleeps", "calls", "wakes", "moving"),
    [
        (("dist.all_reduce(gradient)", ()), ("", _FOR), 900, True),  # a step, and the loop around it
        (("", ()), ("dist.barrier()", _FOR), 900, True),
        (("dist.broadcast(request, 0)", _FOR), ("", ()), 900, True),
        (("dist.all_reduce(gradient)", ()), ("", _FOR), 203, False),  # one sleep that does not end
        (("", ()), ("", _FOR), 900, False),
        (("", _FOR), ("dist.barrier()", _FOR), 900, False),  # it looks again and again for something
        (("dist.all_reduce(gradient)", ()), ("", ()), 900, False),  # nothing goes round
        (("dist.all_reduce(gradient)", None), ("", _FOR), 900, False),  # of an installed package
    ],
)
def test_who_sleeps_in_a_loop_that_calls_the_others_each_round_moves_as_often_as_its_sleep_ends(
    sleeps: tuple[str, tuple[SourceBlock, ...] | None],
    calls: tuple[str, tuple[SourceBlock, ...]],
    wakes: int,
    moving: bool,
) -> None:
    """Without a hook a short sleep in each step looks like one that never ends, at every look."""
    frames = stack("step@JOB:30", "train@JOB:20", "<module>@JOB:4")
    file = frames[0].filename
    lines = (
        SourceLine(file, 30, "time.sleep(0.05)", sleeps[1], round_calls=sleeps[0]),
        SourceLine(file, 20, "step(0.05)", calls[1], round_calls=calls[0]),
        SourceLine(file, 4, "train()", ()),
    )
    processes = tuple(
        process(
            look=number,
            at_seconds=24 * number,
            threads=(ThreadState(PID, "python", "S", 0, "hrtimer_nanosleep", wakes=so_far, own_wakes=2),),
        )
        for number, so_far in ((1, 200), (2, wakes))
    )
    told = rank(stacks=tuple(stacks(thread(frames), look=n) for n in (1, 2)), processes=processes, sources=lines)
    assert read_activity(told).progress.moving is moving
    counted = msgspec.structs.replace(told, heartbeat=(own_record(step=5), own_record(step=5)))
    assert read_activity(counted).progress.moving is False


WORKER = ("fetch@TORCH/utils/data/_utils/fetch.py:1", "_worker_loop@TORCH/utils/data/_utils/worker.py:2")


@pytest.mark.parametrize(
    ("worker", "again", "moving"),
    [
        (("decode@JOB:60", "__getitem__@JOB:55", *WORKER), ("decode@JOB:60", "__getitem__@JOB:55", *WORKER), None),
        (("decode@JOB:60", "__getitem__@JOB:55", *WORKER), ("scale@JOB:70", "__getitem__@JOB:56", *WORKER), True),
        # Its own loop, at work on what it was given between two looks.
        (WORKER, WORKER, True),
    ],
)
def test_a_worker_busy_at_the_same_lines_of_the_job_proves_no_work(
    worker: tuple[str, ...], again: tuple[str, ...], moving: bool | None
) -> None:
    queue = ("poll@PY/selectors.py:1", "get@PY/multiprocessing/queues.py:3")
    waits = (*queue, f"_try_get_data@{LOADER}:4", f"__next__@{LOADER}:5", *STEP)
    children = [
        msgspec.structs.replace(thread(stack(*frames), tid=801, active=True), pid=801) for frames in (worker, again)
    ]
    evidence = rank(
        stacks=tuple(
            part
            for look in (1, 2)
            for part in (
                stacks(thread(stack(*waits)), look=look),
                stacks(children[look - 1], source=f"stacks.child-801-{look}.json", pid=801, look=look),
            )
        ),
        processes=tuple(
            process("S", "do_poll", look=look, at_seconds=5 * look,
                    children=(ChildProcess(801, "R", "python", 400 * look),))
            for look in (1, 2)
        ),
    )  # fmt: skip
    assert read_activity(evidence).progress.moving is moving


def test_a_step_between_the_looks_moves() -> None:
    assert looks(WAITS, WAITS, heartbeat=(own_record(step=4), own_record(step=5))).progress.moving is True


def test_new_operations_move_the_thread_that_issued_them_only() -> None:
    recorders = (issued_by(1, (1, "55"), (2, "77")), issued_by(2, (1, "55"), (2, "77"), (3, "77")))
    assert looks(WAITS, WAITS, recorders=recorders).progress.moving is False
    alone = (issued_by(1, (1, "55")), issued_by(2, (1, "55"), (2, "55")))
    assert looks(WAITS, WAITS, recorders=alone).progress.moving is True


def test_the_thread_of_a_file_that_broke_off_is_still_one_beside_the_one_that_issues() -> None:
    broken = [msgspec.structs.replace(issued_by(n, (1, "55"), backend="nccl"), cut_short=True) for n in (1, 2)]
    beside = [issued_by(1, (1, "77")), issued_by(2, (1, "77"), (2, "77"))]
    unseen = rank(processes=(process("S", look=1), process("S", look=2)), recorders=(*broken, *beside))
    assert read_activity(unseen).progress.moving is None


def test_what_had_ended_before_a_dump_of_active_calls_is_not_new() -> None:
    def seen(*enqueued: int) -> bool | None:
        ended = [msgspec.structs.replace(operation_of(number, "55"), retired=True) for number in (1, 2, 3)]
        first, last = (
            Recorder(f"{look}", look, "nccl", "2.10", (), (GroupStatus(0, number, -1, 3),), tuple(known))
            for look, number, known in ((1, enqueued[0], ()), (2, enqueued[1], ended))
        )
        return looks(WAITS, WAITS, recorders=(first, last)).progress.moving

    assert seen(3, 3) is False
    assert seen(2, 3) is True


def test_a_stopped_process_stands_still() -> None:
    evidence = rank(processes=(process("T", "do_signal_stop", look=1), process("T", "do_signal_stop", look=2)))
    activity = read_activity(evidence)
    assert (activity.process.stopped, activity.progress.moving) == (True, False)


def test_a_rank_that_was_still_starting_at_the_first_look_has_stood_since_the_second() -> None:
    starting, waiting = thread(stack("to@JOB:3", MODULE)), thread(stack(*WAITS))
    seen = (stacks(starting), stacks(waiting, look=2), stacks(waiting, look=3))
    assert read_activity(rank(stacks=seen[:2])).progress.moving is True
    assert read_activity(rank(stacks=seen)).progress.moving is False


def test_operations_issued_before_the_last_two_looks_move_nobody() -> None:
    waiting = thread(stack(*WAITS))
    seen = tuple(stacks(waiting, look=look) for look in (1, 2, 3))
    recorders = (issued_by(1, (1, "55")), issued_by(2, (1, "55"), (2, "55")), issued_by(3, (1, "55"), (2, "55")))
    assert read_activity(rank(stacks=seen, recorders=recorders)).progress.moving is False
