"""What a culprit does may end by itself: the verdict says its kind, and nothing certain."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.diagnosis.activity import read_activity
from stallwatch.model.evidence import Attempt, ChildProcess, SourceLine, ThreadState
from tests.builders.heartbeat import heartbeat
from tests.builders.job import SLEEPS, Rank, evidence, loop, transfer, world
from tests.builders.rank_evidence import MODULE, PID, Frames, process, rank, stack, stacks, thread
from tests.unit.diagnosis.claims.test_judge_processes import CLOSED

STEPS = loop(world(4), 5)
WAITING = [Rank(r, (*STEPS, STEPS[0]), len(STEPS)) for r in (0, 1, 2)]
RPC = "/v/lib/python3.11/site-packages/torch/distributed/rpc/api.py"
LOADER = "TORCH/utils/data/dataloader.py"
WANDB = "/v/lib/python3.11/site-packages/wandb/sdk/wandb_run.py"


@pytest.mark.parametrize(
    ("frames", "wchan", "kind"),
    [
        (stack("fetch@JOB:4", MODULE), "hrtimer_nanosleep", "sleep"),
        # nanosleep() that was held for a look, of ours as well: the kernel goes on with it by restart_syscall
        (stack("reset_card@JOB:4", MODULE), "do_syscall_64", "sleep"),
        (stack("milestone@JOB:4", MODULE), "__do_sys_pause", "sleep"),
        (stack("milestone@JOB:4", MODULE), "do_sigtimedwait.isra.0", "sleep"),
        (stack("Condition.wait@PY/threading.py:327", f"finish@{WANDB}:9", MODULE), "futex_wait_queue", "tracker"),
        (stack("get_data@<frozen importlib._bootstrap_external>:1073", MODULE), "folio_wait_bit", "import"),
        (stack("SocketIO.readinto@PY/socket.py:706", "fetch@JOB:4", MODULE), "wait_woken", "network"),
        (stack("Popen._try_wait@PY/subprocess.py:2015", "upload@JOB:4", MODULE), "do_wait", "child"),
        (stack("acquire@JOB:4", MODULE), "futex_wait_queue", None),
        (stack(f"rpc_sync@{RPC}:792", "ask@JOB:4", MODULE), "futex_wait_queue", "network"),
    ],
)
def test_the_stack_and_the_kernel_tell_the_kind(frames: Frames, wchan: str, kind: str | None) -> None:
    assert read_activity(rank(frames, "S", wchan)).progress.ends_by_itself == kind


@pytest.mark.parametrize(
    ("text", "wchan", "kind"),
    [
        ('connection.execute("insert into trial values (1)")', "hrtimer_nanosleep", "timeout"),  # SQLite's busy handler
        ("batch = prefetched.get(timeout=300)", "futex_wait_queue", "timeout"),
        ("lock.acquire(timeout=60)", "futex_wait_queue", "timeout"),
        ("lock.acquire(timeout=None)", "futex_wait_queue", None),
        ("lock.acquire()", "futex_wait_queue", None),
    ],
)
def test_a_wait_with_a_time_out_of_its_own_may_end_by_itself(text: str, wchan: str, kind: str | None) -> None:
    frames = stack("load@JOB:4", MODULE)
    sources = (SourceLine(frames[0].filename, 4, text),)
    assert read_activity(rank(frames, "S", wchan, sources=sources)).progress.ends_by_itself == kind


@pytest.mark.parametrize(("answered", "kind"), [(False, "timeout"), (True, None)])
def test_a_wait_whose_line_could_not_be_read_may_have_a_time_out(answered: bool, kind: str | None) -> None:
    tried = (Attempt("sources", 1, 1, answered, "" if answered else "the reader did not answer in time"),)
    found = rank(stack("Condition.wait@PY/threading.py:327", "take@JOB:4", MODULE), "S", "futex_wait_queue")
    assert read_activity(msgspec.structs.replace(found, attempts=tried)).progress.ends_by_itself == kind


SHARED = "PY/multiprocessing/synchronize.py"
TIMED_OR_NOT = "return self._wait_semaphore.acquire(True, timeout)"  # with a timeout of None, too


@pytest.mark.parametrize(("endless", "kind"), [(True, None), (False, "timeout"), (None, "timeout")])
def test_the_kernel_knows_whether_a_line_s_time_out_is_none(endless: bool | None, kind: str | None) -> None:
    """A barrier of mp.spawn's ranks was said to have a time-out of its own, and told two minutes late."""
    frames = stack(f"Condition.wait@{SHARED}:268", f"Barrier.wait@{SHARED}:320", "load@JOB:4", MODULE)
    waits = ThreadState(PID, "python", "S", wchan="futex_do_wait", endless=endless)
    found = rank(
        stacks=(stacks(thread(frames)),),
        processes=(process("S", "futex_do_wait", threads=(waits,)),),
        sources=(SourceLine(frames[0].filename, 268, TIMED_OR_NOT),),
    )
    assert read_activity(found).progress.ends_by_itself == kind


@pytest.mark.parametrize(("endless", "kind"), [(True, "timeout"), (False, "timeout")])
def test_another_thread_may_keep_the_time_of_a_wait_that_has_none(endless: bool, kind: str | None) -> None:
    frames = stack("Condition.wait@PY/threading.py:327", "Future.result@PY/concurrent/futures/_base.py:451", "a@JOB:4")
    found = rank(
        stacks=(stacks(thread(frames)),),
        processes=(
            process(
                "S", "futex_do_wait", threads=(ThreadState(PID, "p", "S", wchan="futex_do_wait", endless=endless),)
            ),
        ),
        sources=(SourceLine(frames[2].filename, 4, "run(asyncio.wait_for(c, timeout=30), loop).result()"),),
    )
    assert read_activity(found).progress.ends_by_itself == kind


@pytest.mark.parametrize(
    ("wchan", "kind"), [("hrtimer_nanosleep", "child"), ("futex_do_wait", None), ("pipe_read", None), (None, None)]
)
def test_a_lock_of_processes_may_be_held_by_a_child_that_is_at_work(wchan: str | None, kind: str | None) -> None:
    """A rate limiter, whose turns its own processes take for seconds each, was told as certain after eight."""
    frames = stack(f"SemLock.__enter__@{SHARED}:95", "acquire@JOB:4", MODULE)
    sources = (SourceLine(frames[0].filename, 95, "return self._semlock.__enter__()"),)
    child = ChildProcess(801, "S", "python", 64, wchan=wchan)
    found = rank(
        stacks=(stacks(thread(frames)),),
        processes=(process("S", "futex_do_wait", children=(child,)),),
        sources=sources,
    )
    assert read_activity(found).progress.ends_by_itself == kind


GETS = stack("Condition.wait@PY/threading.py:327", "Queue.get@PY/queue.py:171", "advance@JOB:4", MODULE)
STARTED = ("Thread.run@PY/threading.py:982", "Thread._bootstrap@PY/threading.py:1002")


@pytest.mark.parametrize(
    ("beside", "kind"),
    [
        (stack("SocketIO.readinto@PY/socket.py:706", "deliver@JOB:40", *STARTED), "network"),
        (stack("Condition.wait@PY/threading.py:327", "deliver@JOB:40", *STARTED), None),
        (stack("UvicornServer.serve@/v/lib/python3.11/site-packages/uvicorn/server.py:70", *STARTED), "request"),
    ],
)
def test_who_delivers_may_be_another_thread(beside: Frames, kind: str | None) -> None:
    wchan = "wait_woken" if kind == "network" else "futex_wait_queue"
    threads = (ThreadState(PID, "python", "S", 1, "futex_wait_queue"), ThreadState(701, "python", "S", 1, wchan))
    waits = rank(
        GETS,
        stacks=(stacks(thread(GETS), thread(beside, name="Thread-1", tid=701)),),
        processes=(process("S", "futex_wait_queue", threads=threads),),
    )
    assert read_activity(waits).progress.ends_by_itself == kind


@pytest.mark.parametrize(("computes", "kind"), [(True, "compute"), (False, None)])
def test_who_raises_an_eventfd_may_be_another_thread(computes: bool, kind: str | None) -> None:
    threads = (ThreadState(PID, "python", "S", 1, "do_wait_intr_irq"), ThreadState(701, "python", "R", 1, None))
    beside = thread(stack("prefetch@JOB:40", *STARTED), name="Thread-1", tid=701, active=computes)
    waits = rank(
        stacks=(stacks(thread(stack("take@JOB:4", MODULE)), *((beside,) if computes else ())),),
        processes=(process("S", "do_wait_intr_irq", threads=threads),),
    )
    activity = read_activity(waits)
    assert (activity.place.where, activity.progress.ends_by_itself) == ("lock", kind)


HOLDS = stack("wait@TORCH/distributed/distributed_c10d.py:4", "fetch@JOB:40", *STARTED)


@pytest.mark.parametrize(("beside", "named"), [((HOLDS,), True), ((HOLDS, HOLDS), False), ((), False)])
def test_the_only_other_thread_is_named_where_a_lock_is_waited_for(beside: tuple[Frames, ...], named: bool) -> None:
    waits = stack("Lock.acquire@PY/threading.py:327", "advance@JOB:4", MODULE)
    others = [thread(frames, name=f"Thread-{n}", tid=701 + n) for n, frames in enumerate(beside)]
    seen = msgspec.structs.replace(rank(waits, "S", "futex_do_wait"), rank=3)
    seen = msgspec.structs.replace(seen, stacks=(stacks(thread(waits), *others),))
    told = evidence(*WAITING)
    verdict = judge(msgspec.structs.replace(told, ranks=(*told.ranks, seen))).verdicts[0]
    assert (", while its only other thread in the job's code " in verdict.summary) is named
    assert ("train.py:40" in verdict.summary) is named  # said once
    assert ("If its only other thread holds it" in verdict.next_steps[0]) is named


POOLED = ("_WorkItem.run@PY/concurrent/futures/thread.py:58", "_worker@PY/concurrent/futures/thread.py:83", *STARTED)
RESULT = stack(
    "Condition.wait@PY/threading.py:327", "as_completed@PY/concurrent/futures/_base.py:243", "save@JOB:4", MODULE
)


@pytest.mark.parametrize(("waits", "kind"), [(RESULT, "sleep"), (GETS, None)])
def test_a_result_may_come_from_threads_that_sleep_between_two_tries(waits: Frames, kind: str | None) -> None:
    """What else sleeps in a process, a heartbeat or a logger, delivers nothing."""
    tries = stack("upload@JOB:40", *POOLED)
    pool = [thread(tries, name=f"Thread-{tid}", tid=tid) for tid in (701, 702)]
    threads = (ThreadState(PID, "python", "S", 1, "futex_wait_queue"),
               *(ThreadState(tid, "python", "S", 1, "hrtimer_nanosleep") for tid in (701, 702)))  # fmt: skip
    seen = rank(
        waits,
        stacks=(stacks(thread(waits), *pool),),
        processes=(process("S", "futex_wait_queue", threads=threads),),
    )
    assert read_activity(seen).progress.ends_by_itself == kind


POOL = ("Condition.wait@PY/threading.py:327", "ApplyResult.wait@PY/multiprocessing/pool.py:768",
        "Pool.map@PY/multiprocessing/pool.py:367")  # fmt: skip
QUEUE_OF_PROCESSES = ("Connection._recv@PY/multiprocessing/connection.py:395",
                      "Queue.get@PY/multiprocessing/queues.py:103")  # fmt: skip


@pytest.mark.parametrize(
    ("waits", "states", "kind"),
    [
        (QUEUE_OF_PROCESSES, "R", "child"),
        (QUEUE_OF_PROCESSES, "D", "child"),
        (QUEUE_OF_PROCESSES, "S", None),
        (POOL, "R", "child"),
        (POOL, "S", "child"),  # what it was asked to do may sleep, as between retries
        (POOL, "", "child"),  # a pool of threads, or its processes were not seen
    ],
)
def test_a_pool_and_processes_that_work_may_deliver(waits: tuple[str, ...], states: str, kind: str | None) -> None:
    """One look, as a crowded node gives: nothing tells whether they move."""
    frames = stack(*waits, "tokenise@JOB:4", MODULE)
    workers = tuple(ChildProcess(801 + place, state, "python", 64) for place, state in enumerate(states))
    seen = rank(frames, processes=(process("S", "futex_wait_queue", children=workers),))
    assert read_activity(seen).progress.ends_by_itself == kind


@pytest.mark.parametrize(("again", "stopped"), [("T", 801), ("S", None)])
def test_a_child_that_was_stopped_delivers_nothing_by_itself(again: str, stopped: int | None) -> None:
    frames = stack("select@PY/selectors.py:415", f"__next__@{LOADER}:708", "train@JOB:4", MODULE)
    seen = rank(
        stacks=tuple(stacks(thread(frames), look=look) for look in (1, 2)),
        processes=tuple(
            process("S", "do_poll", look=look, children=(ChildProcess(801, state, "python", 64),))
            for look, state in ((1, "T"), (2, again))
        ),
    )
    activity = read_activity(seen)
    assert activity.helpers.stopped_child == stopped
    assert activity.progress.ends_by_itself == (None if stopped else "data")
    others = evidence(*WAITING)
    fourth = msgspec.structs.replace(seen, rank=3)
    verdict = judge(msgspec.structs.replace(others, ranks=(*others.ranks, fourth))).verdicts[0]
    assert ("child process 801 is stopped" in verdict.summary) is bool(stopped)
    assert any("kill -CONT 801" in step for step in verdict.next_steps) is bool(stopped)


FUTURE = stack(
    "Condition.wait@PY/threading.py:327", "Future.result@PY/concurrent/futures/_base.py:451",
    "_chain_from_iterable_of_lists@PY/concurrent/futures/process.py:620", "tokenise@JOB:4", MODULE,
)  # fmt: skip
MANAGER = stack(
    "_ExecutorManagerThread.wait_result_broken_or_wakeup@PY/concurrent/futures/process.py:417",
    "_ExecutorManagerThread.run@PY/concurrent/futures/process.py:344", "Thread._bootstrap@PY/threading.py:1002",
)  # fmt: skip


@pytest.mark.parametrize(("beside", "moving"), [(MANAGER, True), (GETS, False)])
def test_the_workers_of_an_executor_are_those_that_its_result_comes_from(beside: Frames, moving: bool) -> None:
    def look(number: int) -> tuple[Any, Any]:
        worker = ChildProcess(801, "R", "python", 300 * number)
        threads = stacks(thread(FUTURE), thread(beside, name="Thread-1", tid=701), look=number)
        return threads, process("S", "futex_do_wait", look=number, at_seconds=5 * number, children=(worker,))

    both = [look(1), look(2)]
    activity = read_activity(rank(stacks=tuple(a for a, _ in both), processes=tuple(b for _, b in both)))
    assert activity.progress.moving is moving


def test_a_loader_that_polls_its_workers_waits_for_no_request() -> None:
    loader = "TORCH/utils/data/dataloader.py"
    frames = stack(
        "select@PY/selectors.py:415", "wait@PY/multiprocessing/connection.py:947",
        "get@PY/multiprocessing/queues.py:113", f"_try_get_data@{loader}:1290", f"__next__@{loader}:708",
        "train@JOB:4", MODULE,
    )  # fmt: skip
    assert read_activity(rank(frames, "S", "do_poll")).progress.ends_by_itself == "data"


def test_what_computes_with_the_gil_may_end_and_what_sleeps_with_it_does_not() -> None:
    frames = stack("collect@JOB:4", MODULE)
    still = (heartbeat(2, pulse_count=9, pulse_ns=10**9), heartbeat(2, pulse_count=9, pulse_ns=10**9))
    computes = rank(frames, "R", None, active=True, owns_gil=True, heartbeat=still)
    sleeps = rank(frames, "S", "hrtimer_nanosleep", owns_gil=True, heartbeat=still)
    assert read_activity(computes).progress.ends_by_itself == "compute"
    assert read_activity(sleeps).place.where == "gil"
    assert read_activity(sleeps).progress.ends_by_itself is None


@pytest.mark.parametrize(
    ("changes", "ident", "kind"),
    [
        ((40, 52), 7, "timeout"),  # a lock that others hold for a while each: it was given, and is wanted again
        ((40, 40), 7, None),
        ((40, 52), 8, None),  # of another thread
        ((None, None), 7, None),  # its hook does not count
    ],
)
def test_a_wait_that_ended_and_began_anew_between_two_looks_ends_by_itself(
    changes: tuple[int | None, int | None], ident: int, kind: str | None
) -> None:
    waits = msgspec.structs.replace(thread(stack("acquire@JOB:4", MODULE)), ident=ident)
    told = rank(
        stacks=tuple(stacks(waits, look=look) for look in (1, 2)),
        processes=tuple(process("S", "futex_do_wait", look=look, at_seconds=5 * look) for look in (1, 2)),
        heartbeat=tuple(
            heartbeat(2, pulse_count=9 * look, pulse_ns=5 * look * 10**9, training_ident=7, frame_changes=count)
            for look, count in enumerate(changes, 1)
        ),
        sources=(SourceLine(waits.frames[0].filename, 4, "with gpu_lock:"),),
    )
    assert read_activity(told).progress.ends_by_itself == kind


@pytest.mark.parametrize(
    ("before", "wakes", "endless", "kind"),
    [
        ("acquire@JOB:4", (708, 731), None, "timeout"),  # three others have the lock three seconds each
        ("acquire@JOB:4", (708, 731), True, "timeout"),
        ("acquire@JOB:4", (708, 731), False, None),  # its own time-out ends the wait: `while not ready.wait(poll)`
        ("acquire@JOB:4", (662, 664), None, None),  # our own look paused it
        ("acquire@JOB:4", (708, 714), None, None),  # as others' looks do now and then
        ("acquire@JOB:4", (None, None), None, None),
        ("acquire@JOB:9", (708, 731), None, None),  # it came to the lock meanwhile
    ],
)
def test_without_a_hook_a_lock_that_was_given_between_two_looks_is_told_by_how_often_its_thread_slept(
    before: str, wakes: tuple[int | None, int | None], endless: bool | None, kind: str | None
) -> None:
    waits = [thread(stack(frame, MODULE)) for frame in (before, "acquire@JOB:4")]
    told = rank(
        stacks=tuple(stacks(one, look=look) for look, one in enumerate(waits, 1)),
        processes=tuple(
            process(
                "S", look=look, at_seconds=19 * look,
                threads=(ThreadState(PID, "p", "S", 0, "futex_do_wait", wakes=count, own_wakes=2, endless=endless),),
            )
            for look, count in enumerate(wakes, 1)
        ),
        sources=(SourceLine(waits[1].frames[0].filename, 4, "with lock:"),),
    )  # fmt: skip
    assert read_activity(told).progress.ends_by_itself == kind


@pytest.mark.parametrize("wchan", ["request_wait_answer", "folio_wait_bit_common", "nfs_wait_bit_killable"])
def test_a_page_of_a_mapped_file_is_storage_though_the_gil_is_held_meanwhile(wchan: str) -> None:
    still = (heartbeat(2, pulse_count=9, pulse_ns=10**9), heartbeat(2, pulse_count=9, pulse_ns=10**9))
    activity = read_activity(rank(stack("tokens@JOB:4", MODULE), "D", wchan, owns_gil=True, heartbeat=still))
    assert (activity.place.where, activity.progress.ends_by_itself) == ("filesystem", "storage")
    assert "GIL" in activity.place.detail


def test_a_verdict_carries_the_kind_of_its_culprits_and_is_not_certain() -> None:
    verdict = judge(evidence(*WAITING, Rank(3, STEPS, frames=SLEEPS))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (3,), "likely")
    assert verdict.ends_by_itself == "sleep"


@pytest.mark.parametrize(("before", "kind"), [(0, "first_use"), (3, None)])
def test_the_first_use_of_a_communicator_connects_its_ranks(before: int, kind: str | None) -> None:
    pair = world(2)
    sends = {0: transfer(pair, ("send", 1)), 1: transfer(pair, ("recv", 0))}
    stuck = {0: transfer(pair, ("recv", 1)), 1: transfer(pair, ("recv", 0))}
    past = {0: transfer(pair, ("recv", 1)), 1: transfer(pair, ("send", 0))}
    ranks = [Rank(r, (*(sends[r], past[r]) * before, stuck[r]), 2 * before) for r in (0, 1)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.ends_by_itself) == ("p2p_unmatched", kind)
    assert kind is None or verdict.confidence != "certain"


def test_who_died_has_not_failed_to_enter() -> None:
    """Its log says only that it lost its peers, and every peer lives and waits for it."""
    died = Rank(3, dumped=False, state="X", exit_signal=6, log=CLOSED)
    verdict = judge(evidence(*WAITING, died)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (3,))
    assert not any("py-spy" in step for step in verdict.next_steps)


def test_the_hooks_last_word_tells_how_its_process_ended() -> None:
    ended = msgspec.structs.replace(
        Rank(3, dumped=False, state="X").evidence(), heartbeat=(heartbeat(3, ended=True, exit_code=0),)
    )
    told = evidence(*WAITING)
    verdict = judge(msgspec.structs.replace(told, ranks=(*told.ranks, ended), world_size=4)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (3,))
    assert "not known" not in verdict.summary


def test_transfers_whose_communicator_is_being_made_connect_at_their_first_use() -> None:
    bundle = Path(__file__).parents[3] / "bundles/nccl-first_transfers_connect"
    verdict = judge(load([bundle])).verdicts[0]
    assert (verdict.culprits, verdict.ends_by_itself) == ((), "first_use")
    assert not any("gloo" in sentence for sentence in verdict.missing)
