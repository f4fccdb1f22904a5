"""The state directory, behind a child process: a disk that hangs costs what was to be written, and nobody waits for it.

A thread that sits in the kernel for a dead disk makes its process unkillable, so no thread of the daemon opens a file
there. A call waits for a bounded time; until its late answer comes, others are refused at once and say since when.
"""

import contextlib
import errno
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

LENGTH = struct.Struct("<Q")
START_SECONDS = 10.0  # a first call waits for the child's imports too, on a busy machine
# One that hangs longer is killed. In the kernel's hands it does not die of it, and no second one joins it there.
_GIVE_UP_SECONDS = 60.0
_EXIT_SECONDS = 0.5


class Call(msgspec.Struct, frozen=True):
    name: str  # of a function in the child's table
    arguments: msgspec.Raw


class Failed(msgspec.Struct, frozen=True):
    """The OSError that a call raised."""

    number: int
    path: str


class Answer(msgspec.Struct, frozen=True):
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    failed: Failed | None = None
    problem: str = ""  # any other error


_ANSWER = msgspec.msgpack.Decoder(Answer)


class DiskHangs(TimeoutError):
    """The disk has not answered; what was asked may still happen."""


class Disk:
    """Safe from any thread. Files are small: a call and its answer are held in memory."""

    def __init__(
        self,
        directory: str,
        seconds: float,
        command: Sequence[str] = (sys.executable, "-P", "-m", "stallwatch.incidents.disk_child"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing yet. `seconds`: how long a call may take; `directory` is for sentences alone."""
        self._directory = directory
        self._seconds = seconds
        self._command = list(command)
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: float | None = None  # when the call was made that is not answered yet
        self._received = bytearray()
        self._lost: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def problem(self) -> str:
        """A sentence while the disk does not answer, "" otherwise. Does not wait."""
        self._hear()
        asked = self._asked
        if asked is None or (seconds := self._monotonic() - asked) < self._seconds:
            return ""
        return f"{self._directory} has not answered for {seconds:.0f} s"

    def call(self, name: str, *arguments: Any, seconds: float | None = None) -> bytes:
        """Return the result as msgpack. Raise DiskHangs when it does not come in time, OSError as the child met it."""
        deadline = self._monotonic() + (self._seconds if seconds is None else seconds)
        if not self._turn.acquire(timeout=max(deadline - self._monotonic(), 0)):
            raise self._hangs()
        try:
            self._settle()
            if self._child is None:
                self._start()
                deadline += START_SECONDS
            body = msgspec.msgpack.encode(Call(name, msgspec.Raw(msgspec.msgpack.encode(arguments))))
            self._asked = self._monotonic()
            self._send(LENGTH.pack(len(body)) + body, deadline)
            answer = self._answer(deadline)
        finally:
            self._turn.release()
        if answer is None:
            raise self._hangs()
        if answer.failed is not None:
            raise OSError(answer.failed.number, os.strerror(answer.failed.number), answer.failed.path)
        if answer.problem:
            raise OSError(errno.EIO, answer.problem, self._directory)
        return bytes(answer.value)

    def write(self, path: os.PathLike[str] | str, data: bytes) -> None:
        """Write a file whole, making its folder. As `call`."""
        self.call("write", os.fspath(path), data)

    def close(self) -> None:
        """End the child. One that is stuck in the kernel is left to it."""
        if self._turn.acquire(timeout=self._seconds):
            try:
                self._end()
            finally:
                self._turn.release()

    def _hangs(self) -> DiskHangs:
        return DiskHangs(errno.ETIMEDOUT, self.problem() or f"{self._directory} does not answer in time")

    def _hear(self) -> None:
        """Take a late answer, where nobody else waits for one: who asks for the problem may be waiting for its end."""
        if self._asked is not None and self._turn.acquire(blocking=False):
            try:
                if self._asked is not None and self._child is not None:
                    self._answer(self._monotonic())
            finally:
                self._turn.release()

    def _settle(self) -> None:
        """Take the late answer of an earlier call, or raise DiskHangs while there is none."""
        if self._asked is None or self._child is None:
            return
        if self._answer(self._monotonic()) is not None or self._child is None:
            return
        if self._monotonic() - self._asked > _GIVE_UP_SECONDS:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_EXIT_SECONDS)
                self._end()
                return
        raise self._hangs()

    def _start(self) -> None:
        self._child = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        self._received.clear()
        for stream in (self._child.stdin, self._child.stdout):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def _send(self, frame: bytes, deadline: float) -> None:
        assert self._child is not None and self._child.stdin is not None  # noqa: PT018
        view = memoryview(frame)
        while view:
            try:
                view = view[os.write(self._child.stdin.fileno(), view) :]
            except BlockingIOError:
                if not self._wait(self._child.stdin.fileno(), select.POLLOUT, deadline):
                    # It reads nothing: what was begun can never be finished, so this child is of no use any more.
                    self._end()
                    raise self._hangs() from None
            except BrokenPipeError:
                self._end()
                raise OSError(errno.EIO, "the process that writes there has ended", self._directory) from None

    def _answer(self, deadline: float) -> Answer | None:
        """Return the answer to the call under way, None when there is none by then."""
        assert self._child is not None and self._child.stdout is not None  # noqa: PT018
        while True:
            if len(self._received) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
                if len(self._received) >= end:
                    answer = _ANSWER.decode(bytes(self._received[LENGTH.size : end]))
                    self._received.clear()
                    self._asked = None
                    return answer
            try:
                data = os.read(self._child.stdout.fileno(), 1 << 20)
            except BlockingIOError:
                if not self._wait(self._child.stdout.fileno(), select.POLLIN, deadline):
                    return None
                continue
            if not data:
                self._end()
                return Answer(problem="the process that reads and writes there has ended")
            self._received += data

    def _wait(self, descriptor: int, event: int, deadline: float) -> bool:
        left = deadline - self._monotonic()
        if left <= 0:
            return False
        poll = select.poll()
        poll.register(descriptor, event)
        return bool(poll.poll(left * 1e3))

    def _end(self) -> None:
        child, self._child, self._asked = self._child, None, None
        self._lost = [lost for lost in self._lost if lost.poll() is None]
        if child is None:
            return
        for stream in (child.stdin, child.stdout):
            assert stream is not None
            stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_EXIT_SECONDS)
            return
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_EXIT_SECONDS)  # it was only slow, unless it is in the kernel's hands
            return
        self._lost.append(child)  # asked after again at the next end; it would be a zombie otherwise
