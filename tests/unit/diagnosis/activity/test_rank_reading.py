"""What a rank does, read from one or two looks at it."""

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.activity import RankActivity, read_activity
from stallwatch.diagnosis.frames.code_origin import hint
from stallwatch.model.evidence import (
    RankEvidence,
    Stacks,
    ThreadStack,
    ThreadState,
)
from tests.builders.job import Rank, evidence, loop, world
from tests.builders.rank_evidence import (
    C10D,
    JOB,
    LOADER,
    MODULE,
    PID,
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
        # What reads files, over the network.
        (("Event.wait@PY/threading.py:629", "sync@/venv/lib/python3.11/site-packages/fsspec/asyn.py:94",
          "OpenFile.__enter__@/venv/lib/python3.11/site-packages/fsspec/core.py:105", *STEP), "S", "futex_do_wait",
         "socket"),
        (("SocketIO.readinto@PY/socket.py:718", "HTTPResponse.read@PY/http/client.py:473",
          "copyfileobj@PY/shutil.py:197", *STEP), "S", "wait_woken", "socket"),
        (("read@PY/gzip.py:301", "copyfileobj@PY/shutil.py:197", *STEP), "D", "folio_wait_bit_common", "filesystem"),
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
        ("line = sys.stdin.readline()", "input"),
        ("print(line, flush=True)", "print"),
        ("sys.stderr.write(line)", "print"),
        ("converter.stdin.write(text); made = converter.stdout.read()", "filesystem"),  # of a program that it started
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


@pytest.mark.parametrize(
    ("line", "where", "doing"),
    [
        ("os.write(log, line)", "filesystem", "waits for a terminal"),
        ("print(loss)", "filesystem", "waits for a terminal"),
        ("", "filesystem", "waits for a terminal"),
        ("input('continue? ')", "user_code", "waits for input from a person"),
    ],
)
def test_a_terminal_is_no_socket_though_the_kernel_sleeps_alike(line: str, where: str, doing: str) -> None:
    """Ctrl-S in the terminal to which the log goes: n_tty_write sleeps in wait_woken, as tcp_recvmsg does."""
    told = rank(stack(*STEP), "S", "wait_woken", sources=source(20, line) if line else ())
    paused = msgspec.structs.replace(told.processes[0].threads[0], waits_on="terminal /dev/pts/3 of node7")
    look = msgspec.structs.replace(told.processes[0], threads=(paused,))
    place = read_activity(msgspec.structs.replace(told, processes=(look,))).place
    assert (place.where, place.detail) == (where, doing)


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


AT_EXIT = stack(
    "Thread.join@PY/threading.py:1119", "Queue._finalize_join@PY/multiprocessing/queues.py:199",
    "_run_finalizers@PY/multiprocessing/util.py:300", "_exit_function@PY/multiprocessing/util.py:360",
    "BaseProcess._bootstrap@PY/multiprocessing/process.py:317", "<module>@<string>:1",
)  # fmt: skip


def test_what_was_put_into_a_queue_that_nobody_reads_keeps_a_process_from_its_end() -> None:
    activity = read_activity(rank(AT_EXIT, "S", "futex_wait_queue"))
    place = activity.place
    assert activity.progress.ends_by_itself is None, "it waits for no child: one of its parent it is itself"
    assert (place.where, place.in_teardown) == ("teardown", True)
    assert place.detail == "is ending and waits until somebody reads what it has put into a queue of multiprocessing"


def test_a_job_of_which_all_stand_at_their_end_is_told_so() -> None:
    waits = (Rank(number, frames=AT_EXIT, wchan="futex_wait_queue", dumped=False) for number in range(4))
    verdict = judge(evidence(*waits)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("undecided", ())
    assert "each of ranks 0-3 is ending and waits until somebody reads what it has put" in verdict.summary
    assert "dump" not in verdict.summary
    assert any("before join()" in step for step in verdict.next_steps)


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
    calls = (issued_by(1, (0, "11")),)  # the thread that waits is the one that calls collectives
    look = stacks(main, at_work, idle)
    activity = read_activity(rank(stacks=(look,), processes=(process("S", "futex_do_wait"),), recorders=calls))
    assert activity.place.frame is not None
    assert activity.place.frame.line != 77
    awaited = activity.helpers.awaited
    assert awaited is not None
    assert awaited.frame is not None
    assert (awaited.frame.line, awaited.frame.function) == (77, "put")
    assert any("which is at /srv/job/train.py:77" in fact.fact for fact in activity.why)


_LOOP = (
    "EpollSelector.select@PY/selectors.py:468", "BaseEventLoop._run_once@PY/asyncio/base_events.py:1884",
    "BaseEventLoop.run_forever@PY/asyncio/base_events.py:607", "run@PY/asyncio/runners.py:190", *STEP,
)  # fmt: skip


@pytest.mark.parametrize("pooled", [True, False])
def test_an_event_loop_that_has_nothing_to_do_is_followed_to_its_executor_s_thread(pooled: bool) -> None:
    """A thread of an executor works for the loop; any other, a metrics client's, say, goes its own way."""
    main = thread(stack(*_LOOP), ident=11)
    beside = _pooled("put@JOB:77", tid=702) if pooled else thread(stack("put@JOB:77", *_POOL[2:]), tid=702)
    calls = (issued_by(1, (0, "11")),)
    look = stacks(main, beside)
    activity = read_activity(rank(stacks=(look,), processes=(process("S", "do_epoll_wait"),), recorders=calls))
    assert activity.place.detail == "waits in its asyncio event loop"
    awaited = activity.helpers.awaited
    assert (awaited is not None) == pooled
    assert any("which is at /srv/job/train.py:77" in fact.fact for fact in activity.why) == pooled


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
    beats = (own_record(pulse_count=5), own_record(pulse_count=8))
    activity = read_activity(rank(stack(*STEP), "S", "hrtimer_nanosleep", owns_gil=True, heartbeat=beats))
    assert activity.place.where == "user_code"


def test_without_a_stack_a_pulse_that_stands_still_means_the_gil() -> None:
    looks = (process("S", "futex_do_wait", look=1, at_seconds=10), process("S", "futex_do_wait", look=2, at_seconds=15))
    beats = (own_record(pulse_ns=4 * 10**9), own_record(pulse_ns=4 * 10**9))
    assert read_activity(rank(processes=looks, heartbeat=beats)).place.where == "gil"
    dumping = tuple(msgspec.structs.replace(beat, dump_started_ns=1) for beat in beats)
    assert read_activity(rank(processes=looks, heartbeat=dumping)).place.where == "unknown"
    stopped = tuple(msgspec.structs.replace(look, state="T") for look in looks)
    activity = read_activity(rank(processes=stopped, heartbeat=beats))
    assert (activity.process.stopped, activity.place.where) == (True, "unknown")


@pytest.mark.parametrize(
    ("names", "error", "where"),
    [
        (("sleep",), "it is not a Python process", "user_code"),
        (("sleep",), None, "gil"),  # nobody tried to read its stack
        (("python", "pulse"), "it is not a Python process", "gil"),  # a Python that py-spy does not know
    ],
)
def test_a_process_without_its_hook_s_thread_is_another_program(
    names: tuple[str, ...], error: str | None, where: str
) -> None:
    threads = tuple(ThreadState(PID + at, name, "S", None, "hrtimer_nanosleep") for at, name in enumerate(names))
    looks = tuple(
        process("S", "hrtimer_nanosleep", look=look, at_seconds=5 + 5 * look, threads=threads) for look in (1, 2)
    )
    unread = tuple(Stacks(f"stacks.error-{look}.json", look, PID, (), error) for look in (1, 2)) if error else ()
    beats = (own_record(pulse_ns=4 * 10**9), own_record(pulse_ns=4 * 10**9))
    activity = read_activity(rank(processes=looks, heartbeat=beats, stacks=unread))
    assert activity.place.where == where
    assert ("another program, sleep" in activity.place.detail) == (where == "user_code") == activity.process.replaced
    assert activity.progress.ends_by_itself is None


def test_whom_the_others_wait_for_and_who_is_another_program_is_named() -> None:
    steps = loop(world(4), 6)
    others = [Rank(number, (*steps, steps[0]), len(steps)).evidence() for number in (0, 1, 3)]
    threads = (ThreadState(PID, "sleep", "S", None, "hrtimer_nanosleep"),)
    gone = rank(
        processes=(process("S", "hrtimer_nanosleep", threads=threads),),
        heartbeat=(own_record(),),
        stacks=(Stacks("stacks.error.json", 1, PID, (), "it is not a Python process"),),
    )
    verdict = judge(msgspec.structs.replace(evidence(world_size=4), ranks=(*others, gone))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.where) == ("not_entered", (2,), "user_code")
    assert "os.exec" in " ".join(verdict.next_steps)


def test_the_phase_a_job_told_says_what_a_file_wait_is_for() -> None:
    beat = (own_record(phase="checkpoint"),)
    assert read_activity(rank(stack(*STEP), "D", "nfs_file_fsync", heartbeat=beat)).place.where == "checkpoint"
    assert read_activity(rank((), "D", "nfs_file_fsync", heartbeat=beat)).place.where == "checkpoint"
    assert read_activity(rank(stack(*STEP), "S", "futex_do_wait", heartbeat=beat)).place.where == "lock"


@pytest.mark.parametrize(
    ("state", "wchan", "is_frozen"),
    [
        ("D", "__refrigerator", True),  # version 1 of control groups: a thread that was on its way anywhere
        ("S", "do_freezer_trap", True),  # version 2
        ("D", "nfs_wait_bit_killable", False),
        ("S", "futex_do_wait", False),
    ],
)
def test_a_rank_whose_control_group_is_frozen_is_stopped(state: str, wchan: str, is_frozen: bool) -> None:
    main = ThreadState(PID, "python", state, 0, "hrtimer_nanosleep")
    look = process(state, "hrtimer_nanosleep", threads=(main, ThreadState(PID + 1, "pulse", state, 0, wchan)))
    activity = read_activity(msgspec.structs.replace(rank(stack(*STEP), state), processes=(look,)))
    assert (activity.process.frozen, activity.process.stopped) == (is_frozen, is_frozen)


def test_a_name_that_is_looked_up_is_said_whoever_asks_for_it() -> None:
    """A client's time-out does not count there, and nobody is talked to yet."""
    looks_up = ("getaddrinfo@PY/socket.py:962", "create_connection@PY/socket.py:827")
    urllib3 = "/v/lib/python3.11/site-packages/urllib3/connection.py"
    for client in ((), ("HTTPConnection.connect@PY/http/client.py:941",), (f"new_connection@{urllib3}:200",)):
        place = read_activity(rank(stack(*looks_up, *client, *STEP), "S", "do_sys_poll")).place
        assert (place.where, place.detail) == ("socket", "looks up the name of a host")


@pytest.mark.parametrize(
    ("line", "wchan", "detail"),
    [
        ('dist.TCPStore("10.0.0.1", 29600, 3, True)', "hrtimer_nanosleep", "opens a store and waits for those that"),
        ('dist.TCPStore("10.0.0.1", 29600, 3, False)', "do_poll", "opens a store and waits for those that"),
        ('store.get("address")', "hrtimer_nanosleep", "waits for the store"),  # one of files looks again and again
        ("time.sleep(60)  # until the store.get(", "hrtimer_nanosleep", "sleeps"),
    ],
)
def test_a_store_is_waited_for_in_a_sleep_too(line: str, wchan: str, detail: str) -> None:
    place = read_activity(rank(stack("meet@JOB:4", MODULE), "S", wchan, sources=source(4, line))).place
    assert place.detail.startswith(detail)
