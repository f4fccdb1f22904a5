"""Which thread of a rank is judged, and the child that it waits for."""

from typing import Any

import msgspec
import pytest

from stallwatch.diagnosis.activity import RankActivity, read_activity
from stallwatch.model.evidence import (
    ChildProcess,
    ThreadStack,
)
from tests.builders.rank_evidence import (
    C10D,
    LOADER,
    MODULE,
    STEP,
    issued_by,
    own_record,
    process,
    rank,
    source,
    stack,
    stacks,
    thread,
)


def activity_of(*threads: ThreadStack, **fields: Any) -> RankActivity:
    return read_activity(rank(stacks=(stacks(*threads),), **fields))


SERVICES = (
    thread(stack("_pulse@/v/lib/python3.11/site-packages/stallwatch/hook/pulse.py:1"), name="stallwatch-pulse", tid=1),
    thread(
        stack("wait@PY/threading.py:1", "run@/v/lib/python3.11/site-packages/tqdm/_monitor.py:2"), name="tqdm", tid=2
    ),
    thread(stack("wait@PY/threading.py:1", "_feed@PY/multiprocessing/queues.py:2"), name="QueueFeederThread", tid=3),
    thread(stack("_worker@PY/concurrent/futures/thread.py:1", "run@PY/threading.py:2"), name="pool_0", tid=4),
    thread(stack("get@PY/queue.py:1", "_pin_memory_loop@TORCH/utils/data/_utils/pin_memory.py:2"), name="pin", tid=5),
    thread((), name="pt_nccl_watchdg", tid=6),
)
THREAD_START = ("run@PY/threading.py:2", "_bootstrap_inner@PY/threading.py:3", "_bootstrap@PY/threading.py:4")


def test_service_threads_are_never_judged() -> None:
    main = thread(stack("Event.wait@PY/threading.py:1", *STEP))
    for order in ((main, *SERVICES), (*SERVICES, main)):
        activity = activity_of(*order)
        assert (activity.place.thread, activity.place.where) == ("MainThread", "lock")


def test_a_training_loop_in_a_thread_is_judged_when_main_only_waits() -> None:
    trains = thread(stack(f"all_reduce@{C10D}:1", "loop@JOB:5", *THREAD_START), name="trainer", tid=9)
    joins = thread(stack("Thread.join@PY/threading.py:1", "main@JOB:90", MODULE))
    activity = activity_of(joins, trains, *SERVICES)
    assert (activity.place.thread, activity.call.in_collective) == ("trainer", True)


def test_a_loop_that_is_a_coroutine_is_judged_where_it_stands_and_not_a_thread_beside_it() -> None:
    """`asyncio.run(train())`: the event loop called what stands; it has nothing to do with who else runs."""
    called = ("_run@PY/asyncio/events.py:80", "_run_once@PY/asyncio/base_events.py:1909", "main@JOB:90")
    trains = thread(stack("acquire@JOB:5", "train@JOB:8", *called, MODULE))
    beside = thread(stack("recv@JOB:40", "send_metrics@JOB:44", *THREAD_START), name="metrics", tid=9)
    assert activity_of(trains, beside).place.thread == "MainThread"
    idle = thread(stack("select@PY/selectors.py:468", *called[1:], MODULE))
    assert activity_of(idle, beside).place.thread == "metrics"


def test_a_background_thread_in_a_collective_does_not_hide_a_stuck_main_thread() -> None:
    saver = thread(stack(f"all_reduce@{C10D}:1", "saver@JOB:5", *THREAD_START), name="saver", tid=9, ident=77)
    stuck = thread(stack("Condition.wait@PY/threading.py:1", *STEP), ident=55)
    assert activity_of(stuck, saver).place.thread == "MainThread"


def test_the_recorder_tells_which_thread_issues_the_collectives() -> None:
    waits = thread(stack("Condition.wait@PY/threading.py:1", "main@JOB:90", MODULE), ident=55)
    loop = thread(stack(f"all_reduce@{C10D}:1", "loop@JOB:5", *THREAD_START), name="loop", tid=9, ident=77)
    assert activity_of(waits, loop, recorders=(issued_by(1, (1, "77")),)).place.thread == "loop"
    assert activity_of(waits, loop, recorders=(issued_by(1, (1, "77"), (2, "55")),)).place.thread == "MainThread"


@pytest.mark.parametrize("last", [77, 78])
def test_a_worker_of_an_executor_that_has_nothing_to_do_is_not_the_loop_though_it_made_the_last_step(last: int) -> None:
    """A coroutine hands each step to an executor, now to one thread, now to another; one of them evaluates."""
    pooled = ("_worker@PY/concurrent/futures/thread.py:83", *THREAD_START)
    main = thread(stack("select@PY/selectors.py:468", "_run_once@PY/asyncio/base_events.py:1884", *STEP), ident=55)
    idle = thread(stack("_worker@PY/concurrent/futures/thread.py:81", *THREAD_START), name="pool_1", tid=8, ident=77)
    works = thread(stack("compute@JOB:5", "run@PY/concurrent/futures/thread.py:58", *pooled), tid=9, ident=78)
    step = own_record(step=81, training_ident=last)
    assert activity_of(main, idle, works, heartbeat=(step,)).place.os_thread_id == 9
    calls = (issued_by(1, (1, "77"), (2, "78")),)
    assert activity_of(main, idle, works, heartbeat=(step,), recorders=calls).place.os_thread_id == 9
    assert activity_of(main, idle, heartbeat=(step,)).place.thread == "MainThread"


def test_python_run_by_the_autograd_engine_is_judged_instead_of_main() -> None:
    main = thread(stack("_engine_run_backward@TORCH/autograd/graph.py:1", *STEP))
    engine = thread(stack("Condition.wait@PY/threading.py:1", "my_hook@JOB:7"), name="", tid=9)
    activity = activity_of(main, engine)
    assert (activity.place.where, activity.place.os_thread_id) == ("lock", 9)


def test_the_thread_that_keeps_the_gil_is_judged() -> None:
    main = thread(stack(*STEP))
    owner = thread(stack("compress@JOB:7", *THREAD_START), name="packer", tid=9, owns_gil=True)
    activity = activity_of(main, owner)
    assert (activity.place.where, activity.place.thread) == ("gil", "packer")


def test_our_own_pulse_holding_the_gil_for_a_moment_is_not_the_thread_that_blocks() -> None:
    main = thread(stack("features@JOB:23", *STEP))
    pulse_frames = stack("Pulse._tick@/site/stallwatch/hook/pulse.py:105", *THREAD_START)
    pulse = thread(pulse_frames, name="stallwatch", tid=9, owns_gil=True)
    looks = (stacks(main), stacks(main, pulse, look=2))
    processes = tuple(process("S", "futex_do_wait", look=look, ticks=14, at_seconds=3 * look) for look in (1, 2))
    activity = read_activity(rank(stacks=looks, processes=processes))
    assert (activity.place.where, activity.place.thread, activity.progress.moving) == ("lock", "MainThread", False)


def test_an_ending_main_thread_shows_the_line_of_the_thread_it_waits_for() -> None:
    main = thread(stack("_shutdown@PY/threading.py:1"))
    other = thread(stack("serve@JOB:7", *THREAD_START), name="server", tid=9)
    activity = activity_of(main, other)
    assert (activity.place.where, activity.place.in_teardown) == ("teardown", True)
    assert activity.place.frame is not None
    assert activity.place.frame.function == "serve"


def test_exit_handlers_are_told_by_a_main_thread_that_no_longer_runs_a_module() -> None:
    assert activity_of(thread(stack("Event.wait@PY/threading.py:1", "cleanup@JOB:3"))).place.in_teardown
    assert not activity_of(thread(stack("Event.wait@PY/threading.py:1", "cleanup@JOB:3", MODULE))).place.in_teardown


# Children


def test_a_loader_is_followed_into_the_worker_that_is_at_work() -> None:
    parent = thread(
        stack("poll@PY/selectors.py:1", "get@PY/multiprocessing/queues.py:1", f"_try_get_data@{LOADER}:4", *STEP)
    )
    idle = thread(stack("poll@PY/selectors.py:1", "_worker_loop@TORCH/utils/data/_utils/worker.py:2", *STEP), tid=801)
    stuck_frames = stack(
        "__getitem__@JOB:55", "fetch@TORCH/utils/data/_utils/fetch.py:1",
        "_worker_loop@TORCH/utils/data/_utils/worker.py:2", "run@PY/multiprocessing/process.py:3", *STEP,
    )  # fmt: skip
    stuck = thread(stuck_frames, tid=802)
    children = (ChildProcess(801, "S"), ChildProcess(802, "S", wchan="futex_do_wait"))
    evidence = rank(
        stacks=(
            stacks(parent),
            stacks(msgspec.structs.replace(idle, pid=801), source="stacks.child-801.json", pid=801),
            stacks(msgspec.structs.replace(stuck, pid=802), source="stacks.child-802.json", pid=802),
        ),
        processes=(process("S", "do_poll", children=children),),
        sources=source(55, "with self.lock:"),
    )
    activity = read_activity(evidence)
    helpers = activity.helpers
    assert (activity.place.where, helpers.waits_for_children, helpers.child_pids) == ("dataloader", True, (801, 802))
    assert helpers.child is not None
    assert (helpers.child.pid, helpers.child.detail) == (802, "waits for a lock")
    assert helpers.child.frame is not None
    assert helpers.child.frame.line == 55


def test_a_loader_ends_its_workers_each_epoch_and_the_rank_goes_on() -> None:
    """Each has five seconds to close its files: four slow ones hold a rank up for twenty."""
    ends = (
        "wait@PY/multiprocessing/popen_fork.py:40",
        "join@PY/multiprocessing/process.py:149",
        "_shutdown_workers@TORCH/utils/data/dataloader.py:1600",
        "__del__@TORCH/utils/data/dataloader.py:1625",
    )
    activity = activity_of(thread(stack(*ends, "epoch@JOB:30", MODULE)))
    assert (activity.place.where, activity.place.in_teardown) == ("dataloader", False)
    assert activity.progress.ends_by_itself is not None
    assert activity_of(thread(stack(*ends))).place.in_teardown, "its program is over"
