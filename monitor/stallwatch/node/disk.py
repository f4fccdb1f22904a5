"""The state directory, behind a child process: a disk that hangs costs what was to be written, and nobody waits for it.

A thread that sits in the kernel for a dead disk makes its process unkillable, so no thread of the daemon opens a file
there. A call waits for a bounded time; until its late answer comes, others are refused at once and say since when.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.encoding import msgpack_of
from stallwatch.node.children import module_of_ours, start_own
from stallwatch.node.worker import Worker

START_SECONDS = 10.0  # a first call waits for the child's imports too, on a busy machine
_FILE_SECONDS = 2.0
LIMIT_BYTES = 1 << 30  # of a call, and of its answer
_UNUSED_SECONDS = 60.0
_KILLED_SECONDS = 0.5  # until a process that was killed is gone, unless it is in the kernel's hands


class DiskCall(msgspec.Struct, frozen=True):
    """What a disk's child is asked."""

    name: str  # of a function in the child's table
    arguments: msgspec.Raw


class Failed(msgspec.Struct, frozen=True):
    """The OSError that a call raised."""

    number: int
    path: str


class DiskAnswer(msgspec.Struct, frozen=True):
    """What the child that touches the disk answers to one call: a value, or the error that it raised there."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    failed: Failed | None = None
    problem: str = ""  # any other error


_ANSWER = msgspec.msgpack.Decoder(DiskAnswer)
_BYTES = msgspec.msgpack.Decoder(bytes)
_ENDED = DiskAnswer(problem="the process that reads and writes there has ended")
_ONCE = ("append",)  # of the child's table: what may have been done is done twice by asking again


class DiskHangs(TimeoutError):
    """The disk has not answered; what was asked may still happen."""


class DiskChildEnded(OSError):
    """Twice: nothing is known of the disk by that."""


class Disk:
    """Safe from any thread. Files are small: a call and its answer are held in memory."""

    def __init__(
        self,
        directory: str,
        seconds: float,
        command: Sequence[str] = module_of_ours("stallwatch.incidents.disk_child"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing yet. `seconds`: how long a call may take; `directory` is for sentences alone."""
        self._directory = directory
        self._seconds = seconds
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self._called = monotonic()
        self._worker = Worker(start_own(command), monotonic, LIMIT_BYTES)

    @property
    def pid(self) -> int | None:
        """The child's pid; None without one."""
        return self._worker.pid

    def problem(self) -> str:
        """A sentence while the disk does not answer, "" otherwise. Does not wait."""
        self._hear()
        seconds = self._worker.silent_seconds
        if seconds is None or seconds < self._seconds:
            return ""
        return f"{self._directory} has not answered for {seconds:.0f} s"

    def call(self, name: str, *arguments: Any, seconds: float | None = None) -> bytes:
        """Return the result as msgpack. Raise DiskHangs when it does not come in time, OSError as the child met it."""
        deadline = self._monotonic() + (self._seconds if seconds is None else seconds)
        if not self._turn.acquire(timeout=max(deadline - self._monotonic(), 0)):
            raise self._hangs()
        try:
            self._settle()
            self._called = self._monotonic()
            body = msgpack_of(DiskCall(name, msgspec.Raw(msgpack_of(arguments))))
            answer = self._asked(body, deadline)
            if answer is _ENDED and name not in _ONCE:
                answer = self._asked(body, deadline)  # whatever killed it may have meant another
        finally:
            self._turn.release()
        if answer is None:
            raise self._hangs()
        if answer is _ENDED:
            raise DiskChildEnded(errno.EIO, answer.problem, self._directory)
        if answer.failed is not None:
            raise OSError(answer.failed.number, os.strerror(answer.failed.number), answer.failed.path)
        if answer.problem:
            raise OSError(errno.EIO, answer.problem, self._directory)
        return bytes(answer.value)

    def be_ready(self) -> None:
        """Have the child started that the next call needs; does not wait for it."""
        self._called = self._monotonic()
        if self._turn.acquire(blocking=False):
            try:
                if self._worker.pid is None:
                    self._worker.start()
            except OSError:
                pass  # whoever needs it says so
            finally:
                self._turn.release()

    def rest(self) -> None:
        """End a child that nothing was asked of for a minute; the next call starts another. Does not wait."""
        if self._worker.pid is None or not self._turn.acquire(blocking=False):
            return
        try:
            if self._worker.asked is None and self._monotonic() - self._called > _UNUSED_SECONDS:
                self._worker.end()
        finally:
            self._turn.release()

    def write(self, path: os.PathLike[str] | str, data: bytes) -> None:
        """Write a file whole, making its folder. As `call`."""
        self.call("write", os.fspath(path), data)

    def close(self) -> None:
        """End the child. One that is stuck in the kernel is left to it."""
        if self._turn.acquire(timeout=self._seconds):
            try:
                self._worker.end()
            finally:
                self._turn.release()

    def _hangs(self) -> DiskHangs:
        return DiskHangs(errno.ETIMEDOUT, self.problem() or f"{self._directory} does not answer in time")

    def _hear(self) -> None:
        """Take a late answer, where nobody else waits for one: who asks for the problem may be waiting for its end."""
        if self._worker.asked is not None and self._turn.acquire(blocking=False):
            try:
                if self._worker.asked is not None:
                    self._answer(self._monotonic())
            finally:
                self._turn.release()

    def _settle(self) -> None:
        """Take the late answer of an earlier call, or raise DiskHangs while there is none."""
        if self._worker.asked is None or self._answer(self._monotonic()) is not None:
            return
        if self._worker.is_given_up:
            self._worker.kill()
            if self._worker.wait(self._monotonic() + _KILLED_SECONDS):
                self._worker.end()
                return
        raise self._hangs()

    def _asked(self, request: bytes, deadline: float) -> DiskAnswer | None:
        """Ask the child, a new one where there is none; return as `_answer`."""
        if self._worker.pid is None:
            self._worker.start()
            deadline += START_SECONDS
        try:
            sent = self._worker.ask(request, deadline)
        except BrokenPipeError:
            self._worker.end()
            return _ENDED
        if not sent:
            self._worker.end()
            raise self._hangs()
        return self._answer(deadline)

    def _answer(self, deadline: float) -> DiskAnswer | None:
        """Return the answer to the call under way, None when there is none by then, _ENDED where none will come."""
        while True:
            for message in self._worker.messages():
                self._worker.asked = None
                return _ANSWER.decode(message)
            if self._worker.has_ended:
                self._worker.end()
                return _ENDED
            if not self._worker.wait(deadline):
                return None


def read_regular(path: Path, seconds: float = _FILE_SECONDS) -> bytes:
    """Return the bytes of a regular file that the loop reads while it runs (its configuration, secrets): a file system
    that is dead costs `seconds`, and nobody waits for the writer of a pipe. Raise OSError; DiskHangs, which is one,
    when it has not come in time."""
    disk = Disk(str(path), seconds)
    try:
        disk.call("read", "/dev/null")  # the child's imports have a time of their own
        return _BYTES.decode(disk.call("read_regular", str(path)))
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise OSError(errno.EINVAL, "not a regular file", str(path)) from error
        raise
    finally:
        disk.close()
