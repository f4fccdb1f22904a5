"""The daemon's end of the privileged side: the daemon has no capability, and asks for what needs some."""

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stallwatch.node import capabilities
from stallwatch.node.children import PopenChild, Start, module_of_ours
from stallwatch.node.memory_file import memory_file
from stallwatch.node.privileged_server import MESSAGE_LIMIT_BYTES

COMMAND = module_of_ours("stallwatch.node.privileged_server")
_FIRST_SECONDS = 20.0  # it imports first, on a busy machine
_SECONDS = 2.0
# One that hangs longer is given up, and where it is ours killed: the daemon with it starts again.
_GIVE_UP_SECONDS = 60.0
_EXIT_SECONDS = 6.0  # it lets ranks go on first


class PrivilegedChild:
    """Another process' child: its end is told, and ended, by the privileged side. Satisfies `Talking` and `Child`."""

    def __init__(self, side: "Privileged", identifier: int, pid: int, channel: socket.socket) -> None:
        self.pid = pid  # for people; it may be another's by the time that it is used
        self.returncode: int | None = None
        self.channel = channel
        self._side = side
        self._identifier = identifier

    @property
    def child(self) -> "PrivilegedChild":
        """Itself: it is its own process and channel."""
        return self

    def poll(self) -> int | None:
        """Its exit code as the privileged side told it; None while it runs."""
        self._side.hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raise subprocess.TimeoutExpired after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self._side.wait(left)
        return code

    def terminate(self) -> None:
        """Ask the privileged side to end it."""
        self._end(force=False)

    def kill(self) -> None:
        """Ask the privileged side to kill it."""
        self._end(force=True)

    def _end(self, *, force: bool) -> None:
        if self.poll() is None:
            self._side.say({"verb": "end", "child": self._identifier, "force": force})


class Privileged:
    """For the loop's thread alone; a call waits for a bounded time, and while one is not answered others are refused at
    once."""

    def __init__(self, connection: socket.socket, process: PopenChild | None = None, path: str = "") -> None:
        """`process` is the side itself where it is ours; `path` where it is found again when it is not."""
        self._socket = connection
        self._socket.setblocking(False)
        self._process = process
        self._path = path
        self.lost = False
        self._children: dict[int, PrivilegedChild] = {}
        self._number = 0
        self._asked: float | None = None  # when the request was made that is not answered yet
        self._answer: PrivilegedChild | OSError | None = None
        self._has_answered = False

    @property
    def pid(self) -> int | None:
        """The pid of the privileged side where we started it; else None."""
        return None if self._process is None else self._process.pid

    @property
    def is_ours(self) -> bool:
        """Whether it was started by this process, and so has its configuration and its user."""
        return self._process is not None

    def starting(self, verb: str) -> Start:
        """For who starts the same again and again."""
        return partial(self.start, verb)

    def start(self, verb: str, **words: Any) -> PrivilegedChild:
        """Have something started. Raise OSError: PermissionError with a sentence when it is refused."""
        self.hear()
        if self._asked is not None:
            raise self._silent(self._asked)
        if self.lost:
            self._find_again()
        self._number += 1
        data = json.dumps({"number": self._number, "verb": verb, **words}).encode()
        if len(data) > MESSAGE_LIMIT_BYTES:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        self._socket.send(data)
        return self._answered()

    def renew(self) -> None:
        """Have it read its own configuration again."""
        self.say({"verb": "renew"})

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message that gets no answer; where the side is gone nothing is sent, and nothing raised."""
        with contextlib.suppress(OSError):  # it has gone, which is heard
            self._socket.send(json.dumps(message).encode())

    def has_ended(self) -> bool:
        """Whether it is gone for good: nobody without capabilities can start another."""
        self.hear()
        return self.lost and not self._path

    def hear(self) -> None:
        """Take what it has said. Never waits."""
        while not self.lost:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_LIMIT_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                if self._asked is not None and time.monotonic() - self._asked > _GIVE_UP_SECONDS:
                    self._lose()
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._lose()
                return
            self._take(json.loads(data), descriptors)

    def wait(self, seconds: float | None) -> None:
        """Return once it says something, or after so many seconds (None: no bound)."""
        if self.lost:
            return
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        poll.poll(None if seconds is None else max(seconds, 0) * 1e3)

    def close(self) -> None:
        """End it, or leave it; it ends the children that are left."""
        self._socket.close()
        self._path = ""
        self._lose(kill=False)
        if self._process is not None:
            try:
                self._process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.returncode = -signal.SIGKILL  # nobody will wait for it again

    def _lose(self, *, kill: bool = True) -> None:
        """All that it had started ends with it."""
        self.lost, self._asked = True, None
        self._socket.close()
        for child in self._children.values():
            child.returncode = -signal.SIGKILL
        self._children.clear()
        if self._process is not None and kill:
            self._process.kill()

    def _find_again(self) -> None:
        if not self._path:
            raise _ended()
        self._socket = connect(self._path)
        self._socket.setblocking(False)
        self.lost = False  # and it may not be there yet: the socket is its manager's

    def _answered(self) -> PrivilegedChild:
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

    def _heard(self) -> PrivilegedChild | OSError | None:
        self.hear()
        return _ended() if self.lost and self._answer is None else self._answer

    def _silent(self, since: float) -> OSError:
        seconds = time.monotonic() - since
        return OSError(errno.ETIMEDOUT, f"the process that holds the capabilities has not answered for {seconds:.0f} s")

    def _take(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        if "ended" in message:
            child = self._children.pop(message["ended"], None)
            if child is not None:
                child.returncode = message["code"]
            return
        self._asked, self._has_answered = None, True
        if "errno" in message:
            self._answer = OSError(message["errno"], message["error"])  # a late one is forgotten by who asks next
            return
        channel = socket.socket(fileno=descriptors[0])
        child = self._children[message["child"]] = PrivilegedChild(self, message["child"], message["pid"], channel)
        if message["number"] == self._number:
            self._answer = child
        else:
            channel.close()
            child.kill()


def start_side(settings: Mapping[str, Any], known: int | None = None, command: Sequence[str] = COMMAND) -> Privileged:
    """Start it as a child, with the rights of this process, which then may part with them. `known` is a file in memory
    of ranks that it is to know from the start. Raise OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lends = [theirs.fileno(), *(() if known is None else (known,))]
    arguments = ["--inherit", str(theirs.fileno()), *(() if known is None else ("--known", str(known)))]
    with theirs, memory_file(json.dumps(settings).encode()) as file:
        try:
            process = PopenChild([*command, *arguments], leads_session=True, stdin=file, pass_fds=lends)
        except OSError:
            ours.close()
            raise
    return Privileged(ours, process)


def part_with_capabilities() -> None:
    """For a process that talks to the network: have none and get none again. Root keeps his: he runs it by hand, for
    himself. Call it before threads start."""
    if os.geteuid() != 0 and capabilities.any_permitted():
        capabilities.give_up_for_good()


def find_side(path: str) -> Privileged:
    """The side that runs as a unit of its own. Raise OSError when nobody listens."""
    return Privileged(connect(path), path=path)


def connect(path: str) -> socket.socket:
    """A connection to the privileged side; raise OSError without one."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(_SECONDS)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def _ended() -> OSError:
    return OSError(errno.ESRCH, "the process that holds the capabilities has ended")
