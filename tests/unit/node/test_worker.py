"""A long-lived child, and all that may become of it. Nothing here depends on how long anything takes."""

import errno
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwatch.encoding import LIMIT_BYTES, pack
from stallwatch.node import worker
from stallwatch.node.children import OwnChild, Start, start_own
from stallwatch.node.worker import GIVE_UP_SECONDS, Worker

SOON = 30.0
HEAD = (
    "import os, socket, struct, sys, time\n"
    "def read():\n"
    "    head = sys.stdin.buffer.read(4)\n"
    "    return sys.stdin.buffer.read(*struct.unpack('<I', head)) if len(head) == 4 else None\n"
    "def say(data):\n"
    "    sys.stdout.buffer.write(struct.pack('<I', len(data)) + data)\n"
    "    sys.stdout.buffer.flush()\n"
)
ECHO = "while (request := read()) is not None: say(request[::-1])\n"


class Hand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def started() -> Iterator[list[Worker]]:
    """Ends what a test has started, whatever becomes of it."""
    workers: list[Worker] = []
    yield workers
    for one in workers:
        one.kill()
        one.end()


def worker_of(
    started: list[Worker],
    program: str,
    clock: Callable[[], float] = time.monotonic,
    limit_bytes: int = LIMIT_BYTES,
) -> Worker:
    start = start_own((sys.executable, "-c", HEAD + program), quiet=True)
    made = Worker(start, clock, limit_bytes)
    started.append(made)
    made.start()
    return made


def hear(one: Worker) -> list[bytes]:
    """What it says next, or nothing where it has ended."""
    until = time.monotonic() + SOON
    while True:
        heard = list(one.messages())
        if heard or one.has_ended:
            return heard
        assert time.monotonic() < until, "it says nothing and does not end"
        assert one.descriptor is not None
        select.select([one.descriptor], [], [], 1.0)


def given_up(one: Worker) -> bool:
    return one.is_given_up


def test_it_is_asked_again_and_again(started: list[Worker]) -> None:
    one = worker_of(started, ECHO)
    for request in (b"abc", b"", b"x" * 100_000):
        assert one.ask(request, time.monotonic() + SOON)
        assert one.asked is not None
        assert hear(one) == [request[::-1]]
    assert one.end(patience_seconds=SOON) == 0
    assert one.pid is None


def test_one_that_never_answers_is_given_up_in_the_end_and_no_second_joins_it(started: list[Worker]) -> None:
    clock = Hand()
    one = worker_of(started, "read(); say(b'heard'); time.sleep(600)", clock)
    assert one.ask(b"x")
    assert hear(one) == [b"heard"]  # it has read the request, and never says more
    clock.seconds = GIVE_UP_SECONDS
    assert not list(one.messages())
    assert not given_up(one)
    clock.seconds += 0.1
    assert given_up(one)
    assert one.silent_seconds == clock.seconds
    one.kill()
    assert hear(one) == []
    assert one.has_ended
    assert one.end() == -9


def test_a_late_answer_is_heard(started: list[Worker], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    one = worker_of(started, f"read(); open({str(gate)!r}).read(); say(b'late')")
    assert one.ask(b"x")
    assert not one.wait(time.monotonic())  # the deadline is over before it has said a word
    assert not list(one.messages())
    gate.write_text("go on")
    assert hear(one) == [b"late"]


def test_one_that_dies_with_a_request_has_ended(started: list[Worker]) -> None:
    one = worker_of(started, "read(); sys.exit(3)")
    assert one.ask(b"x")
    assert hear(one) == []
    assert one.has_ended
    assert one.end(patience_seconds=SOON) == 3
    one.start()  # its owner may start another
    assert (one.has_ended, one.asked) == (False, None)


def test_who_asks_one_that_is_gone_is_told(started: list[Worker]) -> None:
    one = worker_of(started, "")
    hear(one)
    with pytest.raises(BrokenPipeError):
        one.ask(b"x" * (1 << 20))


def test_one_that_reads_nothing_costs_its_deadline_and_no_more(started: list[Worker]) -> None:
    one = worker_of(started, "time.sleep(600)")
    assert not one.ask(b"x" * (4 << 20), time.monotonic() + 0.01)
    assert not one.ask(b"x" * (4 << 20))


def test_rubbish_is_an_error_and_costs_no_memory(started: list[Worker]) -> None:
    one = worker_of(started, "sys.stdout.buffer.write(b'\\xff' * 64); sys.stdout.buffer.flush(); read()")
    with pytest.raises(ValueError, match="a message of 4294967295 bytes"):
        hear(one)


def test_a_flood_is_an_error_at_its_first_length(started: list[Worker]) -> None:
    one = worker_of(started, "while True: say(b'x' * 2000)", limit_bytes=1000)
    with pytest.raises(ValueError, match="a message of 2000 bytes"):
        hear(one)
    assert one.end() is not None


def test_a_child_that_says_a_half_and_dies_said_nothing(started: list[Worker]) -> None:
    one = worker_of(started, "sys.stdout.buffer.write(struct.pack('<I', 10) + b'half'); sys.stdout.buffer.flush()")
    assert hear(one) == []
    assert one.has_ended


def test_descriptors_go_with_a_request(started: list[Worker], tmp_path: Path) -> None:
    (tmp_path / "lent").write_text("what it holds")
    program = (
        "connection = socket.socket(fileno=0)\n"
        "data, files, _, _ = socket.recv_fds(connection, 1 << 16, 4)\n"
        "body = b'+'.join(os.read(file, 100) for file in files)\n"
        "connection.sendall(struct.pack('<I', len(body)) + body)\n"
    )
    one = worker_of(started, program)
    with (tmp_path / "lent").open("rb") as first, (tmp_path / "lent").open("rb") as second:
        assert one.ask(b"x", time.monotonic() + SOON, [first.fileno(), second.fileno()])
    assert hear(one) == [b"what it holds+what it holds"]


def test_the_end_of_its_requests_ends_it_before_force_does(started: list[Worker]) -> None:
    one = worker_of(started, "read(); sys.exit(5)")
    assert one.end(patience_seconds=SOON) == 5


class InTheKernel:
    """A child that not even SIGKILL ends, until the test lets it."""

    pid = 1
    returncode: int | None = None

    def __init__(self) -> None:
        self.killed = 0

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        raise subprocess.TimeoutExpired("child", timeout or 0)

    def terminate(self) -> None:
        raise AssertionError("nobody asks it to end")

    def kill(self) -> None:
        self.killed += 1


class Stuck:
    def __init__(self) -> None:
        self.child = InTheKernel()
        self.channel, self.theirs = socket.socketpair()


def test_one_that_cannot_be_killed_is_left_behind_and_asked_after_later(
    started: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_left_behind", [])
    stuck = Stuck()
    start: Start = lambda: stuck  # noqa: E731
    one = Worker(start)
    one.start()
    assert one.end() is None
    assert stuck.child.killed == 2
    assert worker._left_behind == [stuck.child]
    assert one.pid is None
    stuck.child.returncode = -9
    another = worker_of(started, ECHO)
    another.end(patience_seconds=SOON)
    assert worker._left_behind == []
    stuck.theirs.close()


def test_what_cannot_be_started_is_an_error() -> None:
    one = Worker(start_own(("/nonexistent/program",)))
    with pytest.raises(FileNotFoundError):
        one.start()
    assert one.pid is None
    assert one.end() is None


def test_an_interrupted_channel_is_an_end(started: list[Worker]) -> None:
    """A child that goes with a request unread resets the connection: ECONNRESET is no answer and no crash."""
    one = worker_of(started, "time.sleep(600)")
    assert one.ask(b"x")
    one.kill()
    assert hear(one) == []
    with pytest.raises(BrokenPipeError) as raised:
        one.ask(b"x")
    assert raised.value.errno in (errno.EPIPE, errno.ECONNRESET)


def test_one_that_leads_no_session_is_in_our_group() -> None:
    own = OwnChild((sys.executable, "-c", HEAD + ECHO), leads_session=False, quiet=True)
    try:
        assert os.getpgid(own.child.pid) == os.getpgid(0)
        own.channel.sendall(pack(b"abc"))
        own.channel.settimeout(SOON)
        assert own.channel.recv(100) == pack(b"cba")
    finally:
        own.channel.close()
        own.child.kill()
        own.child.wait(SOON)
