"""The daemon's end of the launcher: the daemon has no capability, and asks for the children that need some."""

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from stallwatch.node import capabilities
from stallwatch.node.children import Start, start_here
from stallwatch.node.launcher import MESSAGE_LIMIT_BYTES

_PYTHON = (sys.executable, "-P", "-m")
_FIRST_SECONDS = 20.0  # it imports first, on a busy machine
_SECONDS = 2.0
# One that hangs longer is killed, and the daemon with it starts again.
_GIVE_UP_SECONDS = 60.0
_EXIT_SECONDS = 1.0


class LaunchedChild:
    """Another process' child: signalled by its pidfd, its end told by the launcher."""

    def __init__(self, launcher: "Launcher", pid: int, pidfd: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._launcher = launcher
        self._pidfd = pidfd

    def poll(self) -> int | None:
        self._launcher.hear()
        if self.returncode is None and self._launcher.lost and _is_readable(self._pidfd, 0):
            self.ended(-signal.SIGKILL)  # who could have told how has gone first
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self._launcher.wait(left, self._pidfd)
        return code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def ended(self, code: int) -> None:
        self.returncode = code
        os.close(self._pidfd)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


class Launcher:
    """Satisfies `Start`. For the loop's thread alone; a call waits for a bounded time, and while one is not answered
    others are refused at once."""

    def __init__(self, command: Sequence[str] = (*_PYTHON, "stallwatch.node.launcher")) -> None:
        """Start it, while this process still has what it is to hold. Raise OSError."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.lost = False  # it has ended, and nobody without capabilities can start another
        self._children: dict[int, LaunchedChild] = {}
        self._number = 0
        self._asked: float | None = None  # when the request was made that is not answered yet
        self._answer: LaunchedChild | OSError | None = None
        self._has_answered = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def __call__(
        self, command: Sequence[str], stdin: int, stdout: int | None, more: Sequence[int] = ()
    ) -> LaunchedChild:
        self.hear()
        if self._asked is not None:
            raise self._silent(self._asked)
        if self.lost:
            raise _ended()
        if tuple(command[: len(_PYTHON)]) != _PYTHON:
            raise OSError(errno.EPERM, "only programs of its own are started with capabilities")
        module, *arguments = command[len(_PYTHON) :]
        self._number += 1
        request = {"number": self._number, "module": module, "arguments": arguments, "has_stdout": stdout is not None}
        data = json.dumps(request).encode()
        if len(data) > MESSAGE_LIMIT_BYTES:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        given = (stdin, *(() if stdout is None else (stdout,)), *more)
        socket.send_fds(self._socket, [data], given)
        return self._answered()

    def has_ended(self) -> bool:
        self.hear()
        return self.lost

    def hear(self) -> None:
        """Take what it has said. Never waits."""
        while not self.lost:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_LIMIT_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                if self._asked is not None and time.monotonic() - self._asked > _GIVE_UP_SECONDS:
                    self._process.kill()
                return
            except ConnectionResetError:
                data, descriptors = b"", []
            if not data:
                self.lost, self._asked = True, None
                return
            self._take(json.loads(data), descriptors)

    def wait(self, seconds: float | None, *also: int) -> None:
        """Until it says something; once it is lost, until one of the descriptors `also` can be read."""
        poll = select.poll()
        # While it lives the end of a child is what it says; a child's own descriptor can be read before.
        for descriptor in also if self.lost else (self._socket.fileno(),):
            poll.register(descriptor, select.POLLIN)
        poll.poll(None if seconds is None else max(seconds, 0) * 1e3)

    def close(self) -> None:
        """End it; it ends the children that are left."""
        self._socket.close()
        self.lost = True
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.returncode = -signal.SIGKILL  # nobody will wait for it again

    def _answered(self) -> LaunchedChild:
        asked = self._asked = time.monotonic()
        self._answer = None
        deadline = asked + (_SECONDS if self._has_answered else _FIRST_SECONDS)
        while True:
            answer = self._heard()
            if isinstance(answer, OSError):
                raise answer
            if answer is not None:
                return answer
            if (left := deadline - time.monotonic()) <= 0:
                self._number += 1  # what comes of it now is wanted by nobody
                raise self._silent(asked)
            self.wait(left)

    def _heard(self) -> "LaunchedChild | OSError | None":
        self.hear()
        return _ended() if self.lost and self._answer is None else self._answer

    def _silent(self, since: float) -> OSError:
        seconds = time.monotonic() - since
        return OSError(errno.ETIMEDOUT, f"the process that holds the capabilities has not answered for {seconds:.0f} s")

    def _take(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        if "ended" in message:
            child = self._children.pop(message["ended"], None)
            if child is not None:
                child.ended(message["code"])
            return
        self._asked, self._has_answered = None, True
        wanted = message["number"] == self._number
        if "errno" in message:
            self._answer = OSError(message["errno"], message["error"]) if wanted else None
            return
        child = self._children[message["pid"]] = LaunchedChild(self, message["pid"], descriptors[0])
        if wanted:
            self._answer = child
        else:
            child.kill()


def part_with_capabilities() -> Start | Launcher:
    """Call it before threads start, in a process that talks to the network: what was given to the service goes to the
    launcher, and this process is left without any for good. Root, and who was given none, start children themselves.
    Raise OSError."""
    if os.geteuid() == 0 or not capabilities.any_permitted():
        return start_here
    launcher = Launcher()
    capabilities.give_up_for_good()
    return launcher


def _ended() -> OSError:
    return OSError(errno.ESRCH, "the process that holds the capabilities has ended")


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1e3))
