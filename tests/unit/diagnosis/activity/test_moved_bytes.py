"""Whose bytes are progress: a recorder's beside a thread that waits by itself are its own."""

from collections.abc import Mapping

import pytest

from stallwatch.diagnosis.activity import read_activity
from stallwatch.diagnosis.activity.blocking_location import BlockingLocation
from stallwatch.diagnosis.activity.observed import JudgedThread, observed
from stallwatch.diagnosis.activity.threads import RankLook, thread_look
from stallwatch.model.evidence import ProcessLook, SourceLine, ThreadState
from tests.builders.rank_evidence import JOB, LOADER, PID, STEP, process, rank, stack, stacks, thread

MANY = 40 << 20
RECORDS = stack("write@JOB:71", "record@JOB:70", "Thread.run@PY/threading.py:982")
RECEIVES = ("SocketIO.readinto@PY/socket.py:717", "load@JOB:7", *STEP)
AT_A_LOCK = ("load@JOB:7", *STEP)
LOCK_LINE = SourceLine(JOB, 7, "    lock.acquire()")
EVENT = ("Event.wait@PY/threading.py:629", "load@JOB:7", *STEP)
RESULT = ("Future.result@PY/concurrent/futures/_base.py:451", "load@JOB:7", *STEP)


def moves(
    waits: tuple[str, ...],
    wchan: str,
    moved: Mapping[int, int | None],
    *,
    beside: tuple[str, ...] = (),
    state: str = "S",
    names: Mapping[int, str] | None = None,
    wakes: int = 0,
) -> bool | None:
    """Between two looks, five seconds apart: at the second each of its threads, by tid, has moved so many bytes, and
    the process that it is 40 MiB, and each thread has woken so often. Thread 701 is one of Python's."""
    other = thread(stack(*beside) if beside else RECORDS, name="Thread-1", tid=701)

    def look(number: int) -> ProcessLook:
        threads = tuple(
            ThreadState(
                tid,
                (names or {}).get(tid, "python"),
                state,
                wchan=wchan,
                moved_bytes=count and count * (number - 1),
                wakes=wakes * (number - 1),
            )
            for tid, count in moved.items()
        )
        whole = MANY * (number - 1)
        return process(
            state, wchan, look=number, threads=threads, at_seconds=5 * number, read_bytes=0, write_bytes=whole
        )

    both = (stacks(thread(stack(*waits)), other), stacks(thread(stack(*waits)), other, look=2, source="stacks-2.json"))
    seen = rank(stacks=both, processes=(look(1), look(2)), sources=(LOCK_LINE,))
    return read_activity(seen).progress.moving


@pytest.mark.parametrize(("waits", "wchan"), [(RECEIVES, "sk_wait_data"), (AT_A_LOCK, "futex_do_wait")])
def test_what_another_thread_writes_is_its_own(waits: tuple[str, ...], wchan: str) -> None:
    assert moves(waits, wchan, {PID: 0, 701: MANY}) is False
    assert moves(waits, wchan, {PID: 1 << 20, 701: MANY}) is True, "its own"
    assert moves(waits, wchan, {PID: (1 << 20) - 1, 701: MANY}) is False, "a log's lines"
    assert moves(waits, wchan, {PID: 0, 701: 0, 702: MANY}) is True, "a library's own thread works for its caller"
    assert moves(waits, wchan, {PID: None, 701: MANY}) is True, "what it moved itself is not known"


@pytest.mark.parametrize("name", ["pt_gloo_runloop", "gloo_tcp_loop"])
def test_collectives_of_another_thread_bring_nothing(name: str) -> None:
    """A keep-alive in a group of its own: gloo's threads read and write for it."""
    assert moves(AT_A_LOCK, "futex_do_wait", {PID: 0, 701: 0, 702: MANY}, names={702: name}) is False


def test_what_processes_share_is_given_back_by_another_process() -> None:
    """A barrier of mp.spawn's ranks: what one had read was taken for progress, the hang for a wait."""
    barrier = ("Condition.wait@PY/multiprocessing/synchronize.py:268", "Barrier.wait@PY/threading.py:697", *AT_A_LOCK)
    assert moves(barrier, "futex_do_wait", {PID: 0, 701: MANY}) is False
    assert moves(barrier, "futex_do_wait", {PID: 1 << 20, 701: MANY}) is True, "its own"


@pytest.mark.parametrize(
    ("waits", "wchan"),
    [
        (AT_A_LOCK, "anon_pipe_read"),
        (AT_A_LOCK, "anon_pipe_write"),
        (("PollSelector.select@PY/selectors.py:398", "Popen._communicate@PY/subprocess.py:2115", *STEP),
         "do_poll.constprop.0"),
    ],
)  # fmt: skip
def test_what_goes_through_a_pipe_flows_where_who_stands_there_wakes_and_has_moved_some(
    waits: tuple[str, ...], wchan: str
) -> None:
    """A generator behind a pipe: a token each half second, for two and a half minutes, is read by one call."""
    assert moves(waits, wchan, {PID: 40, 701: MANY}, wakes=10) is True
    assert moves(waits, wchan, {PID: 40, 701: MANY}, wakes=2) is False, "a line, and then silence"
    assert moves(waits, wchan, {PID: 0, 701: MANY}, wakes=10) is False, "a profiler's signals"
    assert moves(EVENT, "do_poll.constprop.0", {PID: 40}, wakes=10) is False, "an event loop polls"


OWN_RECEIVE = ("load@JOB:9", *STEP)


@pytest.mark.parametrize("wchan", ["wait_woken", "sk_wait_data", "unix_stream_data_wait"])
def test_what_a_socket_gives_flows_whoever_calls_the_receive(wchan: str) -> None:
    """A client of one's own, or redis': no frame of Python's library is below it, and a shard comes at 20 kB/s."""
    assert moves(OWN_RECEIVE, wchan, {PID: 0}, wakes=10) is True
    assert moves(OWN_RECEIVE, wchan, {PID: 0}, wakes=2) is False, "a message, and then silence"
    assert moves(OWN_RECEIVE, "do_poll.constprop.0", {PID: 0}, wakes=10) is False, "with a time-out it polls"


@pytest.mark.parametrize(("wchan", "answers"), [("unix_stream_read_generic", 10), ("do_epoll_wait", None)])
def test_what_a_socket_gives_to_the_thread_that_it_waits_for_flows(wchan: str, answers: int | None) -> None:
    threads = (
        ThreadState(PID, "python", "S", wchan="futex_do_wait"),
        ThreadState(701, "python", "S", wchan=wchan, wakes=10),
    )
    fetches = thread(stack("get@JOB:9", "Thread.run@PY/threading.py:982"), name="Thread-1 (get)", tid=701)
    main, known = thread(stack(*RESULT)), process("S", "futex_do_wait", threads=threads)
    look = RankLook(1, (main, fetches), (), known, None, None)
    moment = JudgedThread(look, main, thread_look(known, main, main=True), BlockingLocation("lock", "waits"))
    assert [one.answers for one in observed(moment).awaited] == [answers]


def test_an_event_may_be_set_by_whoever_writes() -> None:
    assert moves(EVENT, "futex_do_wait", {PID: 0, 701: MANY}) is True
    of_processes = ("Condition.wait@PY/multiprocessing/synchronize.py:268",
                    "Event.wait@PY/multiprocessing/synchronize.py:349", *AT_A_LOCK)  # fmt: skip
    assert moves(of_processes, "futex_do_wait", {PID: 0, 701: MANY}) is True, "a thread that reads may set it as well"


def test_results_that_another_thread_brings_are_waited_for() -> None:
    """A process pool's thread reads what the workers give; a loader that pins memory has one, too."""
    pool = ("_handle_results@PY/multiprocessing/pool.py:579", "Thread.run@PY/threading.py:982")
    pins = ("do_one_step@TORCH/utils/data/_utils/pin_memory.py:40", "Thread.run@PY/threading.py:982")
    polls = ("_try_get_data@" + LOADER + ":1275", "load@JOB:7", *STEP)
    assert moves(AT_A_LOCK, "futex_do_wait", {PID: 0, 701: MANY}, beside=pool) is True
    assert moves(polls, "do_poll", {PID: 0, 701: MANY}, beside=pins) is True
    assert moves(polls, "do_poll", {PID: 0, 701: MANY}) is False


def test_a_result_s_own_thread_is_waited_for() -> None:
    assert moves(RESULT, "futex_do_wait", {PID: 0, 701: MANY}) is True
