"""What a rank does, read from one or two looks at it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Unpack

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stallwatch.diagnosis.activity import RankActivity, read_activity
from stallwatch.diagnosis.activity.blocking_location import kernel_wait
from stallwatch.diagnosis.frames.code_origin import hint
from stallwatch.diagnosis.logs.consequence import last_exception
from stallwatch.model.evidence import (
    SHARED_LOG,
    Attempt,
    ChildProcess,
    CodeFrame,
    GroupStatus,
    Operation,
    ProcessLook,
    RankEvidence,
    Recorder,
    SourceLine,
    Stacks,
    ThreadStack,
    ThreadState,
)
from stallwatch.model.snapshot import Heartbeat
from tests.builders import heartbeat as builders
from tests.builders.heartbeat import HeartbeatFields
from tests.builders.job import Call, world
from tests.builders.job import recorder as recorded
from tests.builders.rank_evidence import JOB, MODULE, PID, logged, process, rank, source, stack, stacks, thread

C10D = "TORCH/distributed/distributed_c10d.py"
LOADER = "TORCH/utils/data/dataloader.py"
STEP = ("step@JOB:20", MODULE)


def heartbeat(**fields: Unpack[HeartbeatFields]) -> Heartbeat:
    """The record of the one rank that is looked at; its pulse has begun."""
    words: HeartbeatFields = {"pid": PID, "pulse_count": 5}
    words.update(fields)
    return builders.heartbeat(2, **words)


@pytest.mark.parametrize(
    ("frames", "state", "wchan", "where"),
    [
        (("Condition.wait@PY/threading.py:327", "load@JOB:7", *STEP), "S", "futex_do_wait", "lock"),
        (("Queue.get@PY/queue.py:171", "step@JOB:20", MODULE), "S", "futex_wait_queue", "lock"),
        (("wait@PY/concurrent/futures/_base.py:1", *STEP), "S", "futex_do_wait", "lock"),
        (("FileBaton.wait@TORCH/utils/file_baton.py:43", "_jit_compile@TORCH/utils/cpp_extension.py:9", *STEP), "S",
         "hrtimer_nanosleep", "lock"),
        (STEP, "S", "futex_do_wait", "lock"),
        (STEP, "S", "locks_lock_inode_wait", "lock"),
        (STEP, "S", "hrtimer_nanosleep", "user_code"),
        (STEP, "S", "wait_woken", "socket"),
        (("recv_into@PY/socket.py:1", "begin@PY/http/client.py:2", *STEP), "S", "wait_woken", "socket"),
        (STEP, "D", "nfs_wait_bit_killable", "filesystem"),
        (STEP, "D", "folio_wait_bit_common", "filesystem"),
        (STEP, "S", "wait_for_partner", "filesystem"),
        (STEP, "D", "kernel_clone", "filesystem"),
        (("save_checkpoint@JOB:5", *STEP), "D", "kernel_clone", "checkpoint"),
        (("write_checkpoint@JOB:5", *STEP), "D", "rpc_wait_bit_killable", "checkpoint"),
        (("save@TORCH/serialization.py:1", "step@JOB:20", MODULE), "D", "io_schedule", "checkpoint"),
        (("poll@PY/selectors.py:1", "_poll@PY/multiprocessing/connection.py:2", "get@PY/multiprocessing/queues.py:3",
          f"_try_get_data@{LOADER}:4", f"__next__@{LOADER}:5", *STEP), "S", "do_poll", "dataloader"),
        (("parse@JOB:3", "__getitem__@JOB:4", "fetch@TORCH/utils/data/_utils/fetch.py:5", f"__next__@{LOADER}:6",
          *STEP), "S", "hrtimer_nanosleep", "dataloader"),
        (("get@PY/queue.py:1", "next_batch@JOB:4", *STEP), "S", "futex_do_wait", "dataloader"),
        (("Event.wait@PY/threading.py:629", "_all_gather@TORCH/distributed/rpc/api.py:257",
          "_wait_all_workers@TORCH/distributed/rpc/api.py:320", "shutdown@TORCH/distributed/rpc/api.py:382", *STEP),
         "S", "futex_do_wait", "collective"),
        (("_store_based_barrier@" + C10D + ":1", "new_group@" + C10D + ":2", *STEP), "S", "do_poll", "init"),
        (("_create_c10d_store@TORCH/distributed/rendezvous.py:1", *STEP), "S", "do_poll", "init"),
        (("all_reduce@" + C10D + ":1", *STEP), "S", "futex_do_wait", "collective"),
        (("_engine_run_backward@TORCH/autograd/graph.py:1", *STEP), "S", "futex_do_wait", "collective"),
        (("communicate@PY/subprocess.py:1", "_run_ninja_build@TORCH/utils/cpp_extension.py:2", *STEP), "S", "pipe_read",
         "compile"),
        (("destroy_process_group@" + C10D + ":1", "main@JOB:3", MODULE), "S", "futex_do_wait", "teardown"),
        (("_shutdown@PY/threading.py:1",), "S", "futex_do_wait", "teardown"),
        (("run@PY/subprocess.py:1", *STEP), "S", "do_wait", "user_code"),
        (STEP, "S", "anon_pipe_write", "filesystem"),
        ((), "S", "hrtimer_nanosleep", "user_code"),
        ((), "D", "nfs4_proc", "filesystem"),
        ((), "S", "futex_do_wait", "unknown"),
    ],
)  # fmt: skip
def test_where_a_rank_stands(frames: tuple[str, ...], state: str, wchan: str, where: str) -> None:
    assert read_activity(rank(stack(*frames), state, wchan)).place.where == where


def test_a_look_at_nothing_is_unknown() -> None:
    activity = read_activity(RankEvidence(4, None, None))
    assert activity == RankActivity(rank=4)
    assert not activity.known


def test_the_shown_line_carries_its_source() -> None:
    activity = read_activity(rank(stack(*STEP), "S", "futex_do_wait", sources=source(20, "    with table_lock:\n")))
    assert activity.place.frame is not None
    assert (activity.place.frame.file, activity.place.frame.line, activity.place.frame.function) == (JOB, 20, "step")
    assert activity.place.frame.source == "with table_lock:"
    assert (activity.place.where, activity.call.in_collective) == ("lock", False)


def test_a_wait_in_c_at_a_line_that_does_not_tell_may_be_a_collective() -> None:
    assert read_activity(rank(stack(*STEP), "S", "futex_do_wait")).call.in_collective is None
    told = read_activity(rank(stack(*STEP), "S", "futex_do_wait", sources=source(20, "work.wait()")))
    assert (told.place.where, told.call.in_collective) == ("collective", True)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("with self.lock:  # never .wait()", "lock"),
        ("with guard:", "lock"),
        ("with open(path) as file:", "filesystem"),
        ("lock.acquire()", "lock"),
        ("time.sleep(5)", "sleep"),
        ("[w.wait() for w in works]", "collective"),
        ("store.get('key')", "store"),
        ("dist.distributed_c10d._get_default_store().get('key')", "store"),
        ("rows = cursor.execute(query).fetchall()", "database"),
        ("answer = input('continue? ')", "input"),
        ("print(line, flush=True)", "print"),
        ("print(loss.item())", "gpu_sync"),
        ("batch = self.queue.get()", "queue"),
        ("result = future.result()", "join"),
        ("loss.item()", "gpu_sync"),
        ("x = y + 1", None),
        ("", None),
    ],
)
def test_the_text_of_a_line_tells_the_call_in_c(line: str, kind: str | None) -> None:
    assert hint(line) == kind


@pytest.mark.parametrize(
    ("line", "wchan", "where", "doing"),
    [
        ("db.execute('insert into runs values (1)')", "hrtimer_nanosleep", "lock", "waits for a database"),
        ("db.execute('insert into runs values (1)')", "poll_schedule_timeout", "socket", "waits for a database"),
        ("input('continue? ')", "anon_pipe_read", "user_code", "waits for input from a person"),
        ("print(loss, flush=True)", "anon_pipe_write", "filesystem",
         "writes into a pipe that is full and that nobody reads"),
        ("dist.distributed_c10d._get_default_store().get('key')", "poll_schedule_timeout.constprop.0", "store",
         "waits for the store"),
    ],
)  # fmt: skip
def test_what_a_wait_in_c_is_for(line: str, wchan: str, where: str, doing: str) -> None:
    activity = read_activity(rank(stack(*STEP), "S", wchan, sources=source(20, line)))
    assert (activity.place.where, activity.place.detail, activity.call.in_collective) == (where, doing, False)


def test_a_collective_is_named_and_its_line_shown() -> None:
    activity = read_activity(rank(stack(f"all_reduce@{C10D}:1", f"wrapper@{C10D}:2", *STEP), "S", "futex_do_wait"))
    assert (activity.call.in_collective, activity.call.collective) == (True, "all_reduce")
    assert activity.place.detail == "waits in all_reduce"
    assert activity.place.frame is not None
    assert activity.place.frame.line == 20


def test_the_jobs_code_called_back_from_torch_is_not_in_the_collective() -> None:
    frames = stack(
        "Condition.wait@PY/threading.py:1", "hook@JOB:5", "all_reduce@" + C10D + ":1", "train@JOB:20", MODULE
    )
    activity = read_activity(rank(frames, "S", "futex_do_wait"))
    assert (activity.place.where, activity.call.in_collective) == ("lock", False)


GPU_THREADS = (ThreadState(PID, "python", "R"), ThreadState(PID + 1, "cuda-EvtHandlr", "S"))


def test_a_thread_that_spins_without_the_gil_waits_for_its_gpu() -> None:
    spinning = rank(stack(*STEP), "R", active=True, processes=(process("R", threads=GPU_THREADS),))
    assert read_activity(spinning).place.gpu_sync
    computing = rank(stack(*STEP), "R", active=True, owns_gil=True, processes=(process("R", threads=GPU_THREADS),))
    assert read_activity(computing).place.where == "busy_loop"
    without_gpu = rank(stack(*STEP), "R", active=True)
    assert read_activity(without_gpu).place.where == "busy_loop"


def test_the_empty_recorder_of_a_build_for_gpus_makes_no_gpu_rank() -> None:
    empty = recorded(0, ())
    computing = rank(stack(*STEP), "R", active=True, recorders=(empty,))
    assert read_activity(computing).place.where == "busy_loop"
    used = rank(stack(*STEP), "R", active=True, recorders=(recorded(2, (Call(world(3)),)),))
    assert read_activity(used).place.gpu_sync


def test_synchronize_is_a_gpu_wait() -> None:
    activity = read_activity(rank(stack("synchronize@TORCH/cuda/__init__.py:1", *STEP), "R", active=True))
    assert (activity.place.where, activity.place.gpu_sync, activity.call.in_collective) == ("gpu_sync", True, False)


_FUTURE = (
    "Condition.wait@PY/threading.py:327", "Future.result@PY/concurrent/futures/_base.py:451", *STEP,
)  # fmt: skip
_POOL = (
    "_WorkItem.run@PY/concurrent/futures/thread.py:58", "_worker@PY/concurrent/futures/thread.py:83",
    "Thread.run@PY/threading.py:982", "Thread._bootstrap@PY/threading.py:1002",
)  # fmt: skip


def _pooled(*lines: str, tid: int) -> ThreadStack:
    return thread(stack(*lines, *_POOL), name=f"save_{tid}", tid=tid)


def test_a_future_is_followed_to_the_line_of_the_thread_that_works_on_it() -> None:
    main = thread(stack(*_FUTURE), ident=11)
    at_work = _pooled("put@JOB:77", tid=702)
    idle = thread(stack(*_POOL[1:]), name="save_1", tid=703)
    calls = (recorder(1, (0, "11")),)  # the thread that waits is the one that calls collectives
    look = stacks(main, at_work, idle)
    activity = read_activity(rank(stacks=(look,), processes=(process("S", "futex_do_wait"),), recorders=calls))
    assert activity.place.frame is not None
    assert activity.place.frame.line != 77
    awaited = activity.helpers.awaited
    assert awaited is not None
    assert awaited.frame is not None
    assert (awaited.frame.line, awaited.frame.function) == (77, "put")
    assert any("which is at /srv/job/train.py:77" in fact.fact for fact in activity.why)


def test_of_several_threads_at_work_nothing_tells_which_is_awaited() -> None:
    main = thread(stack(*_FUTURE))
    working = [_pooled("put@JOB:77", tid=702), _pooled("put@JOB:78", tid=703)]
    activity = read_activity(rank(stacks=(stacks(main, *working),), processes=(process("S", "futex_do_wait"),)))
    assert activity.helpers.awaited is None


def test_a_thread_beside_one_that_waits_for_a_lock_is_not_followed() -> None:
    main = thread(stack("Condition.wait@PY/threading.py:327", *STEP))
    activity = read_activity(
        rank(stacks=(stacks(main, _pooled("put@JOB:77", tid=702)),), processes=(process("S", "futex_do_wait"),))
    )
    assert activity.helpers.awaited is None


def test_a_sleeping_owner_of_the_gil_holds_it() -> None:
    activity = read_activity(rank(stack(*STEP), "S", "hrtimer_nanosleep", owns_gil=True))
    assert activity.place.where == "gil"


def test_a_stopped_owner_of_the_gil_is_stopped_and_no_more() -> None:
    activity = read_activity(rank(stack(*STEP), "T", "do_signal_stop", owns_gil=True))
    assert activity.process.stopped
    assert activity.place.where != "gil"
    assert not any("GIL" in fact.fact for fact in activity.why)


@pytest.mark.parametrize("state", ["X", "Z"])
def test_the_state_of_a_thread_that_is_gone_is_no_reason(state: str) -> None:
    assert not any("state" in fact.fact for fact in read_activity(rank((), state)).why)


def test_a_checkpoint_that_holds_the_gil_stays_a_checkpoint() -> None:
    frames = stack("save@TORCH/serialization.py:1", *STEP)
    activity = read_activity(rank(frames, "S", "wait_for_partner", owns_gil=True))
    assert activity.place.where == "checkpoint"
    assert "GIL" in activity.place.detail


def test_a_pulse_that_goes_on_clears_the_gil() -> None:
    beats = (heartbeat(pulse_count=5), heartbeat(pulse_count=8))
    activity = read_activity(rank(stack(*STEP), "S", "hrtimer_nanosleep", owns_gil=True, heartbeat=beats))
    assert activity.place.where == "user_code"


def test_without_a_stack_a_pulse_that_stands_still_means_the_gil() -> None:
    looks = (process("S", "futex_do_wait", look=1, at_seconds=10), process("S", "futex_do_wait", look=2, at_seconds=15))
    beats = (heartbeat(pulse_ns=4 * 10**9), heartbeat(pulse_ns=4 * 10**9))
    assert read_activity(rank(processes=looks, heartbeat=beats)).place.where == "gil"
    dumping = tuple(msgspec.structs.replace(beat, dump_started_ns=1) for beat in beats)
    assert read_activity(rank(processes=looks, heartbeat=dumping)).place.where == "unknown"
    stopped = tuple(msgspec.structs.replace(look, state="T") for look in looks)
    activity = read_activity(rank(processes=stopped, heartbeat=beats))
    assert (activity.process.stopped, activity.place.where) == (True, "unknown")


def test_the_phase_a_job_told_says_what_a_file_wait_is_for() -> None:
    beat = (heartbeat(phase="checkpoint"),)
    assert read_activity(rank(stack(*STEP), "D", "nfs_file_fsync", heartbeat=beat)).place.where == "checkpoint"
    assert read_activity(rank((), "D", "nfs_file_fsync", heartbeat=beat)).place.where == "checkpoint"
    assert read_activity(rank(stack(*STEP), "S", "futex_do_wait", heartbeat=beat)).place.where == "lock"


# Which thread


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


def test_a_background_thread_in_a_collective_does_not_hide_a_stuck_main_thread() -> None:
    saver = thread(stack(f"all_reduce@{C10D}:1", "saver@JOB:5", *THREAD_START), name="saver", tid=9, ident=77)
    stuck = thread(stack("Condition.wait@PY/threading.py:1", *STEP), ident=55)
    assert activity_of(stuck, saver).place.thread == "MainThread"


def test_the_recorder_tells_which_thread_issues_the_collectives() -> None:
    waits = thread(stack("Condition.wait@PY/threading.py:1", "main@JOB:90", MODULE), ident=55)
    loop = thread(stack(f"all_reduce@{C10D}:1", "loop@JOB:5", *THREAD_START), name="loop", tid=9, ident=77)
    assert activity_of(waits, loop, recorders=(recorder(1, (1, "77")),)).place.thread == "loop"
    assert activity_of(waits, loop, recorders=(recorder(1, (1, "77"), (2, "55")),)).place.thread == "MainThread"


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


# Motion


def looks(
    first: tuple[str, ...],
    second: tuple[str, ...],
    *,
    state: str = "S",
    wchan: str | None = "futex_do_wait",
    ticks: tuple[int | None, int | None] = (None, None),
    before: Mapping[str, Any] = MappingProxyType({}),
    after: Mapping[str, Any] = MappingProxyType({}),
    **fields: Any,
) -> RankActivity:
    """Two looks five seconds apart; `before` and `after` are fields of the process looks."""
    return read_activity(
        rank(
            stacks=(
                stacks(thread(stack(*first), active=state == "R")),
                stacks(thread(stack(*second), active=state == "R"), look=2, source="stacks-2.json"),
            ),
            processes=(
                process(state, wchan, look=1, ticks=ticks[0], at_seconds=10, **before),
                process(state, wchan, look=2, ticks=ticks[1], at_seconds=15, **after),
            ),
            **fields,
        )
    )


WAITS = ("Condition.wait@PY/threading.py:327", "load@JOB:7", *STEP)


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
    assert looks(WAITS, WAITS, heartbeat=(heartbeat(step=4), heartbeat(step=5))).progress.moving is True


def operation(record_id: int, thread_id: str) -> Operation:
    return Operation(
        record_id, 0, "0", "default_pg", record_id, 0, record_id, "all_reduce", "gloo", "scheduled", False, False,
        (), (), (), (), None, None, None, None, thread_id=thread_id,
    )  # fmt: skip


def recorder(look: int, *operations: tuple[int, str], backend: str = "gloo") -> Recorder:
    return Recorder(
        f"fr-{look}.pickle", look, backend, "2.10", (), (), tuple(operation(record, by) for record, by in operations)
    )


def test_new_operations_move_the_thread_that_issued_them_only() -> None:
    recorders = (recorder(1, (1, "55"), (2, "77")), recorder(2, (1, "55"), (2, "77"), (3, "77")))
    assert looks(WAITS, WAITS, recorders=recorders).progress.moving is False
    alone = (recorder(1, (1, "55")), recorder(2, (1, "55"), (2, "55")))
    assert looks(WAITS, WAITS, recorders=alone).progress.moving is True


def test_what_had_ended_before_a_dump_of_active_calls_is_not_new() -> None:
    def seen(*enqueued: int) -> bool | None:
        ended = [msgspec.structs.replace(operation(number, "55"), retired=True) for number in (1, 2, 3)]
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


# Ends and exceptions


def test_a_zombie_is_gone_with_its_signal() -> None:
    activity = read_activity(rank(processes=(process("Z", exit_signal=9, out_of_memory=True),)))
    assert (activity.end.gone, activity.end.exit_signal, activity.end.out_of_memory) == (True, 9, True)
    assert activity.call.in_collective is False


def test_a_hook_that_said_its_last_word_does_not_bury_a_live_process() -> None:
    assert not read_activity(rank(heartbeat=(heartbeat(ended=True),))).end.gone
    assert read_activity(RankEvidence(2, None, PID, heartbeat=(heartbeat(ended=True),))).end.gone


LOG = (
    "[rank2]: Traceback (most recent call last):",
    f'[rank2]:   File "{JOB}", line 88, in load',
    "[rank2]:     raise ValueError('bad shard')",
    '[rank2]:   File "/v/lib/python3.11/site-packages/torch/_tensor.py", line 9, in check',
    "[rank2]: ValueError: bad shard",
)


def test_an_exception_is_read_from_the_log_with_the_jobs_line() -> None:
    raised = last_exception(logged(*LOG), 2)
    assert raised is not None
    assert (raised.text, raised.consequence) == ("ValueError: bad shard", False)
    assert raised.frame is not None
    assert (raised.frame.line, raised.frame.function) == (88, "load")
    assert last_exception(logged(*LOG), 1) is None


def test_a_traceback_that_names_nobody_in_a_file_of_several_ranks_is_nobodys() -> None:
    anybody = tuple(line.removeprefix("[rank2]: ") for line in LOG)
    assert last_exception(logged(*anybody), 2) is not None
    assert last_exception(logged(*anybody), 2, shared=True) is None
    assert last_exception(logged(*LOG), 2, shared=True) is not None
    attempts = (Attempt("log", 1, 0, True, SHARED_LOG),)
    assert read_activity(rank(log=anybody, attempts=attempts)).exceptions.text is None
    assert read_activity(rank(log=LOG, attempts=attempts)).exceptions.text == "ValueError: bad shard"


@pytest.mark.parametrize(
    "last",
    [
        "RuntimeError: [/x/pair.cc:553] Connection closed by peer [127.0.0.1]:18849.",
        "RuntimeError: [/x/unbound_buffer.cc:129] Timed out waiting 10000ms for recv operation to complete",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 2.",
    ],
)
def test_an_exception_about_a_lost_peer_is_a_consequence(last: str) -> None:
    raised = last_exception(logged("Traceback (most recent call last):", last), 2)
    assert raised is not None
    assert raised.consequence


def test_an_exception_of_a_live_rank_is_swallowed_unless_it_is_ending() -> None:
    waits = read_activity(rank(stack(*WAITS), "S", "futex_do_wait", log=LOG)).exceptions.raised
    assert waits is not None
    assert waits.swallowed
    ending = stack(f"destroy_process_group@{C10D}:1", "main@JOB:3", MODULE)
    activity = read_activity(rank(ending, "S", "futex_do_wait", log=LOG))
    assert activity.place.in_teardown
    assert activity.exceptions.raised is not None
    assert not activity.exceptions.raised.swallowed


def test_the_hooks_word_on_an_exception_comes_before_the_log() -> None:
    activity = read_activity(rank(stack(*WAITS), heartbeat=(heartbeat(exception="KeyError"),)))
    assert activity.exceptions.text == "KeyError"


@pytest.mark.parametrize(
    ("wchan", "state", "kind"),
    [
        ("futex_wait_queue_me", "S", "futex"), ("poll_schedule_timeout.constprop.0", "S", "poll"),
        ("unix_stream_read_generic", "S", "socket"), ("kernel_clone", "D", "vfork"), ("do_wait", "S", "child"),
        ("anon_pipe_read", "S", "pipe"), ("rpc_wait_bit_killable", "D", "file"), ("some_new_driver", "D", "file"),
        ("some_new_driver", "S", None), ("0", "R", None), (None, None, None), ("futex_do_wait", "T", "stopped"),
    ],
)  # fmt: skip
def test_the_kernels_symbol_names_the_kind_of_wait(wchan: str | None, state: str | None, kind: str | None) -> None:
    assert kernel_wait(wchan, state) == kind


# Properties

words = st.sampled_from(["", "wait", "Condition.wait", "all_reduce", "<module>", "main.<locals>.step", "\x00", "…"])
paths = st.sampled_from(["", "<string>", JOB, "/usr/lib/python3.11/threading.py", f"/v/site-packages/torch/{C10D[6:]}"])
frame_lists = st.lists(st.builds(CodeFrame, words, paths, st.integers(-1, 9)), max_size=5).map(tuple)
letters = st.sampled_from([None, "R", "S", "D", "T", "Z", "?"])
symbols = st.sampled_from([None, "", "0", "futex_do_wait", "do_poll", "nfs_x", "\n"])
ids = st.sampled_from([None, 0, PID, 801])
thread_stacks = st.builds(ThreadStack, words, ids, st.booleans(), st.booleans(), frame_lists, ids, ids)
stack_looks = st.builds(
    Stacks, st.sampled_from(["stacks.json", "stacks.child-801.json"]), st.integers(0, 3), ids,
    st.lists(thread_stacks, max_size=4).map(tuple), st.sampled_from([None, "denied"]),
)  # fmt: skip
process_looks = st.builds(
    ProcessLook, source=st.just("process.json"), look=st.integers(0, 3), pid=ids, state=letters,
    exit_code=st.sampled_from([None, 0, 1]), exit_signal=st.sampled_from([None, 9]), wchan=symbols,
    cpu_ticks=st.integers(0, 9) | st.none(),
    threads=st.lists(
        st.builds(ThreadState, st.integers(0, 801), words, letters, st.none() | st.integers(0, 9)), max_size=2
    ).map(tuple),
    children=st.lists(st.builds(ChildProcess, st.integers(0, 801), words), max_size=2).map(tuple),
)  # fmt: skip
evidence_of_a_rank = st.builds(
    RankEvidence, st.just(2), st.none(), ids, st.just(()), st.lists(stack_looks, max_size=4).map(tuple),
    st.lists(process_looks, max_size=3, unique_by=lambda look: look.look).map(tuple),
    st.lists(st.just(heartbeat()), max_size=3).map(tuple), st.just(()),
    st.lists(st.sampled_from([*LOG, "", "\x1b[31m", "Error: x"]), max_size=6).map(tuple),
    sources=st.lists(st.builds(SourceLine, paths, st.integers(-1, 9), words), max_size=2).map(tuple),
)  # fmt: skip


# Without hypothesis' explanations, which take minutes on values of this size.
@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink])
@given(evidence_of_a_rank)
def test_odd_evidence_never_raises_and_order_is_irrelevant(evidence: RankEvidence) -> None:
    backwards = msgspec.structs.replace(
        evidence,
        stacks=tuple(msgspec.structs.replace(s, threads=s.threads[::-1]) for s in reversed(evidence.stacks)),
        processes=evidence.processes[::-1],
        sources=evidence.sources[::-1],
    )
    assert read_activity(evidence) == read_activity(backwards)


def test_a_rank_that_was_still_starting_at_the_first_look_has_stood_since_the_second() -> None:
    starting, waiting = thread(stack("to@JOB:3", MODULE)), thread(stack(*WAITS))
    seen = (stacks(starting), stacks(waiting, look=2), stacks(waiting, look=3))
    assert read_activity(rank(stacks=seen[:2])).progress.moving is True
    assert read_activity(rank(stacks=seen)).progress.moving is False


def test_operations_issued_before_the_last_two_looks_move_nobody() -> None:
    waiting = thread(stack(*WAITS))
    seen = tuple(stacks(waiting, look=look) for look in (1, 2, 3))
    recorders = (recorder(1, (1, "55")), recorder(2, (1, "55"), (2, "55")), recorder(3, (1, "55"), (2, "55")))
    assert read_activity(rank(stacks=seen, recorders=recorders)).progress.moving is False
