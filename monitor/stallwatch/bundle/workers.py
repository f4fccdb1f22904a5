"""Hands files, one by one, to children that parse them; a file that kills or stalls its child is a caveat."""

import os
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from stallwatch.bundle.child import ADDRESS_SPACE_BYTES, LENGTH, Answer, Job, send
from stallwatch.errors import StallwatchError

_DEADLINE_SECONDS: Final = 20.0
_BYTES_PER_SECOND: Final = 2 << 20  # a slow, shared machine still parses this much
_MAXIMUM_ANSWER_BYTES: Final = 512 << 20
_BYTES_PER_WORKER: Final = 8 << 20  # starting a second interpreter pays beyond this
_MAXIMUM_WORKERS: Final = 8
# Neither the environment nor the working directory takes part in the child's imports (-I), and -S saves the time of
# looking for site-packages again: it gets our path.
_START: Final = (
    "import sys; sys.path[:] = sys.argv[2:]; from stallwatch.bundle.child import main; main(int(sys.argv[1]))"
)


class Task(msgspec.Struct):
    """One file. `open` returns its descriptor, or raises OSError or StallwatchError; `done` gets what came of it: the
    result as msgpack, or the clause that says why there is none."""

    job: Job
    size_bytes: int
    open: Callable[[], int]
    done: Callable[[msgspec.Raw | None, str], None]

    def fail(self, clause: str) -> None:
        self.done(None, clause)


def parse_all(tasks: Sequence[Task]) -> None:
    """Run every task; each gets its `done` exactly once, in this thread. What a file does never raises here."""
    waiting = deque(tasks)
    total_bytes = sum(task.size_bytes for task in tasks)
    count = min(_MAXIMUM_WORKERS, os.cpu_count() or 1, len(tasks), 1 + total_bytes // _BYTES_PER_WORKER)
    with selectors.DefaultSelector() as selector:
        workers = [_Worker(selector) for _ in range(count)]
        try:
            while waiting or any(worker.task for worker in workers):
                for worker in workers:
                    if worker.task is None:
                        worker.take_next(waiting)
                _serve(selector, workers)
        finally:
            for worker in workers:
                worker.end()


def _serve(selector: selectors.BaseSelector, workers: Sequence["_Worker"]) -> None:
    """Wait until a worker has something to say or is late."""
    busy = [worker for worker in workers if worker.task]
    if not busy:
        return
    soonest = min(worker.deadline for worker in busy)
    ready = {key.data for key, _ in selector.select(max(0.0, soonest - time.monotonic()))}
    for worker in busy:
        if worker in ready:
            worker.read()
        elif time.monotonic() >= worker.deadline:
            worker.lose("reading it took too long and was ended")


class _Worker:
    """One child, replaced when a file was too much for it."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.task: Task | None = None
        self.deadline = 0.0
        self._selector = selector
        self._start()

    def take_next(self, waiting: deque[Task]) -> None:
        """Give the child the next file that can be opened."""
        while waiting and self.task is None:
            task = waiting.popleft()
            try:
                descriptor = task.open()
            except OSError as error:
                task.fail(f"it cannot be opened: {error.strerror or error}")
                continue
            except StallwatchError as error:
                task.fail(str(error))
                continue
            try:
                self._give(task, descriptor)
            finally:
                os.close(descriptor)

    def read(self) -> None:
        """Take in what the child says, and pass the answer on when it is whole."""
        task = self.task
        assert task is not None
        try:
            self._received += self._connection.recv(1 << 20) or b""
            answer = self._answer()
        except (OSError, msgspec.DecodeError):
            answer = None
            self.lose("reading it ended the process that did")
        else:
            if answer is None and self._process.poll() is not None and not self._pending():
                self.lose(_how_it_ended(self._process.returncode))
        if answer is not None:
            self.task = None
            if answer.spent:
                self._restart()
            task.done(None if answer.problem else answer.value, answer.problem)

    def lose(self, clause: str) -> None:
        """The file has cost us the child."""
        task, self.task = self.task, None
        self._restart()
        if task is not None:
            task.fail(clause)

    def end(self) -> None:
        self._selector.unregister(self._connection)
        self._connection.close()
        self._process.kill()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            pass  # blocked in a file system: not waited for

    def _start(self) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno()), *filter(None, sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._received = bytearray()
        self._selector.register(self._connection, selectors.EVENT_READ, self)

    def _restart(self) -> None:
        self.end()
        self._start()

    def _give(self, task: Task, descriptor: int) -> None:
        self.task = task
        self.deadline = time.monotonic() + _DEADLINE_SECONDS + task.size_bytes / _BYTES_PER_SECOND
        try:
            send(self._connection, task.job, descriptor)
        except OSError:
            self.lose("the process that reads it could not be started")

    def _answer(self) -> Answer | None:
        if len(self._received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._received)
        if length > _MAXIMUM_ANSWER_BYTES:
            raise OSError("the child says more than it may")
        if len(self._received) < LENGTH.size + length:
            return None
        body, self._received = bytes(self._received[LENGTH.size : LENGTH.size + length]), bytearray()
        return msgspec.msgpack.decode(body, type=Answer)

    def _pending(self) -> Any:
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return b""


def _how_it_ended(code: int | None) -> str:
    limit = f"{ADDRESS_SPACE_BYTES >> 20} MiB"
    return f"reading it ended the process that did (status {code}; its memory is limited to {limit}, its time as well)"
