"""A long-lived child that is asked one thing at a time, over the socket that is its standard input and output. One that
does not answer is not asked again, and no second one joins it where it hangs; who is willing to lose it loses nothing
else.

No call waits but those that say so. What an answer means, and when the next child is started, its owner says.
"""

import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

from stallwatch.encoding import LIMIT_BYTES, Unpacker, pack
from stallwatch.node.children import Child, Start

# One that hangs this long is killed. In the kernel's hands it does not die of it.
GIVE_UP_SECONDS = 60.0
_END_SECONDS = 0.5

# Children that not even SIGKILL has ended: asked after again now and then, for they would be zombies otherwise.
_left_behind: list[Child] = []


class Worker:
    """The child and the one question that it works on."""

    def __init__(
        self, start: Start, monotonic: Callable[[], float] = time.monotonic, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        """Start nothing yet. An answer that is longer than `limit_bytes` is nonsense."""
        self._start = start
        self._monotonic = monotonic
        self._limit_bytes = limit_bytes
        self._child: Child | None = None
        self._channel: socket.socket | None = None
        self._unpacker = Unpacker(limit_bytes)
        self.asked: float | None = None  # when the request was made that is not answered yet
        self.has_ended = False  # it said its last: `end` it

    @property
    def pid(self) -> int | None:
        """The child's pid; None without one."""
        return None if self._child is None else self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether its child is there and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def descriptor(self) -> int | None:
        """What to poll for reading."""
        return None if self._channel is None else self._channel.fileno()

    @property
    def silent_seconds(self) -> float | None:
        """How long the request has not been answered; None when there is none."""
        return None if self.asked is None else self._monotonic() - self.asked

    @property
    def is_given_up(self) -> bool:
        """Whether it has been silent for so long that it is to be killed."""
        return (self.silent_seconds or 0.0) > GIVE_UP_SECONDS

    def start(self) -> None:
        """Raise OSError when it cannot be started."""
        started = self._start()
        self._child, self._channel = started.child, started.channel
        self._channel.setblocking(False)
        self._unpacker = Unpacker(self._limit_bytes)
        self.asked, self.has_ended = None, False

    def ask(self, request: bytes, deadline: float | None = None, lends: Sequence[int] = ()) -> bool:
        """Send a request, of as much as it takes until `deadline`; return whether it was: one that reads nothing, or of
        which a part was sent, is of no use any more. `lends`: descriptors that go with it. Raise BrokenPipeError when
        it has ended."""
        assert self._channel is not None
        self.asked = self._monotonic()
        left = memoryview(pack(request))
        try:
            while left:
                try:
                    left = left[self._send(left, lends) :]
                    lends = ()
                except BlockingIOError:
                    if deadline is None or not self._wait(select.POLLOUT, deadline):
                        return False
        except OSError as error:
            self.has_ended = True
            raise BrokenPipeError(error.errno, error.strerror) from error
        return True

    def messages(self) -> Iterator[bytes]:
        """Yield what it has said. `has_ended` tells afterwards whether more may come. Raise ValueError for nonsense."""
        while self._channel is not None and not self.has_ended:
            try:
                data = self._channel.recv(1 << 18)
            except BlockingIOError:
                return
            except OSError:  # it has ended, and left a request unread
                data = b""
            if not data:
                self.has_ended = True
                return
            yield from self._unpacker.feed(data)

    def wait(self, deadline: float) -> bool:
        """Wait until it has said something; return whether it has."""
        return self._wait(select.POLLIN, deadline)

    def kill(self) -> None:
        """Kill the child; the next question starts another."""
        if self._child is not None:
            self._child.kill()

    def end(self, seconds: float = _END_SECONDS, patience_seconds: float | None = None) -> int | None:
        """End it by the end of its requests, in `patience_seconds` (as `seconds` where it is not given), then by force,
        in `seconds`; one that is in the kernel's hands is left to it. Return its exit code, None of one left behind."""
        _left_behind[:] = [child for child in _left_behind if child.poll() is None]
        child, self._child, self.asked, self.has_ended = self._child, None, None, False
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if child is None:
            return None
        for wait_seconds in (seconds if patience_seconds is None else patience_seconds, seconds):
            try:
                return child.wait(wait_seconds)
            except subprocess.TimeoutExpired:
                child.kill()
        _left_behind.append(child)
        return None

    def _send(self, data: memoryview, lends: Sequence[int]) -> int:
        assert self._channel is not None
        return socket.send_fds(self._channel, [data], lends) if lends else self._channel.send(data)

    def _wait(self, event: int, deadline: float) -> bool:
        left = deadline - self._monotonic()
        if left <= 0 or self._channel is None:
            return False
        poll = select.poll()
        poll.register(self._channel.fileno(), event)
        return bool(poll.poll(left * 1e3))
