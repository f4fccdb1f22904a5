"""The panel's end of a sensor that runs in a child process which the loop is willing to lose."""

import socket
import subprocess
from typing import Generic, TypeVar

import msgspec

from stallwatch.clock import Clock
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import SensorStatus
from stallwatch.node.children import Child, Start
from stallwatch.node.frames import Unpacker, pack
from stallwatch.sensors.frames import NEWS, Answer

T = TypeVar("T")

_FIRST_BACK_OFF_SECONDS = 1.0
_LONGEST_BACK_OFF_SECONDS = 60.0
# What is absent (a driver) may be installed while we run; looking for it costs a process start.
_ABSENT_BACK_OFF_SECONDS = 300.0
# A child that hangs this long is ended; one that cannot be ended sits in the kernel, and no second one joins it there.
_GIVE_UP_SECONDS = 60.0
# A child that imports on a busy node may take this long to say that there is nothing to read.
_SLOW_START_SECONDS = 5.0
# Between the end of a child's answers and its exit.
_EXIT_SECONDS = 0.1


class SupervisedSensor(Generic[T]):
    """Asks a child once a look. No call here waits: `descriptor` tells when there is something to collect."""

    def __init__(
        self,
        name: str,
        title: str,
        answer_type: type[T],
        start: Start,
        clock: Clock,
        *,
        required: bool = True,
    ) -> None:
        """`title` is how sentences name it ("NVML"); `start` starts its child, with the rights that it needs; one that
        is not `required` may be absent, but has to answer where it is not."""
        self.name = name
        self._title = title
        self._decoder = msgspec.msgpack.Decoder(answer_type)
        self._answers = msgspec.msgpack.Decoder(Answer)
        self._clock = clock
        self._required = required
        self._present = False  # the node has the thing, so that not to answer is a fault
        self._start_child = start
        self._process: Child | None = None
        self._channel: socket.socket | None = None  # our end of its standard input and output
        self._unpacker = Unpacker()
        self._request = 0
        self._asked_ns: int | None = None  # when the request was made that is not answered yet
        self._start_ns = clock.monotonic_ns()  # earliest next start
        self._back_off_seconds = _FIRST_BACK_OFF_SECONDS
        self._errors_total = 0
        self._starts = 0
        self._duration_seconds = 0.0
        self._result: Known[T] | Unavailable = Unavailable(f"{title} has not been asked yet", self._start_ns)
        self._settled = False  # this look's result is final
        self._has_news = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def descriptor(self) -> int | None:
        """What to poll for reading while this look's answer is missing."""
        return None if self._settled else self.news_descriptor

    @property
    def news_descriptor(self) -> int | None:
        """What to poll between looks for the child's word that something happened."""
        return None if self._channel is None else self._channel.fileno()

    def news(self) -> bool:
        """Between looks: return whether the child said since the last look that it should be asked soon."""
        if self._process is not None:
            self.collect(late=True)
        return self._has_news

    def ask(self) -> None:
        """Begin a look: drop a late answer, start or restart the child if it is time, and ask unless it still hangs."""
        self._settled = False
        if self._process is not None:
            self.collect(late=True)
        self._has_news = False
        now_ns = self._clock.monotonic_ns()
        if self._process is None and now_ns >= self._start_ns:
            self._start(now_ns)
        if self._process is None or self._back_off_seconds == 0.0:  # it is on its way out: nothing to ask
            self._settled = True
            return
        if self._asked_ns is not None:
            if now_ns - self._asked_ns > _GIVE_UP_SECONDS * 1e9:
                self._process.kill()
            return
        self._request += 1
        try:
            assert self._channel is not None
            self._channel.send(pack(msgspec.msgpack.encode(self._request)))
            self._asked_ns = now_ns
        except OSError:
            self._ended()

    def collect(self, late: bool = False) -> None:
        """Take what the child has said; `late` drops it, for it answers a question of an earlier look."""
        assert self._process is not None
        assert self._channel is not None
        while True:
            try:
                data = self._channel.recv(1 << 18)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it has ended, and left a question unread
                data = b""
            if not data:
                self._ended()
                return
            try:
                for message in self._unpacker.feed(data):
                    self._take(self._answers.decode(message), late)
            except (ValueError, msgspec.MsgspecError) as error:
                self._fail(f"{self._title}: its process answered nonsense ({error})")
                self._settled, self._asked_ns = True, None
                self._process.kill()
                return

    def result(self) -> Known[T] | Unavailable:
        """This look's reading; without an answer by now, since when there is none."""
        if not self._settled and self._asked_ns is not None:
            now_ns = self._clock.monotonic_ns()
            seconds = (now_ns - self._asked_ns) / 1e9
            self._present |= seconds > _SLOW_START_SECONDS
            self._fail(f"{self._title} has not answered for {seconds:.0f} s" if seconds >= 1 else self._slow(seconds))
        return self._result

    def status(self) -> SensorStatus:
        reason = self._result.reason if isinstance(self._result, Unavailable) else ""
        required = self._required or self._present
        return SensorStatus(
            self.name, not reason, reason, self._duration_seconds, self._errors_total, required=required
        )

    def close(self, seconds: float = 0.5) -> None:
        """End the child by its end of file, then by force; one that is stuck in the kernel is left to it."""
        process, self._process = self._process, None
        if process is None:
            return
        self._close_channel()
        for end in (None, process.kill):
            if end is not None:
                end()
            try:
                process.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                continue
        process.returncode = -9  # nobody will wait for it again

    def _start(self, now_ns: int) -> None:
        self._unpacker = Unpacker()
        self._asked_ns = None
        self._starts += 1
        try:
            started = self._start_child()
        except OSError as error:
            self._fail(f"{self._title}: its process cannot be started: {error.strerror}")
            self._delay(now_ns)
            return
        self._process, self._channel = started.child, started.channel
        self._channel.setblocking(False)

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _take(self, answer: Answer, late: bool) -> None:
        self._has_news |= answer.request == NEWS
        if answer.request != self._request:
            return
        self._asked_ns = None
        if late and not answer.absent:
            return
        self._settled = True
        self._duration_seconds = answer.duration_seconds
        now_ns = self._clock.monotonic_ns()
        self._present = not answer.absent
        if answer.absent:
            self._result = Unavailable(answer.error, now_ns)
            self._start_ns = now_ns + int(_ABSENT_BACK_OFF_SECONDS * 1e9)
            self._back_off_seconds = 0.0  # its end is expected
        elif not answer.value:
            self._fail(f"{self._title}: {answer.error}")
        else:
            self._result = Known(self._decoder.decode(answer.value), now_ns)
            self._back_off_seconds = _FIRST_BACK_OFF_SECONDS

    def _ended(self) -> None:
        """The child is gone: say so, and let the next start wait a little longer each time."""
        process, self._process = self._process, None
        self._asked_ns = None
        assert process is not None
        self._close_channel()
        try:
            code = process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.returncode = -9
        self._settled = True
        if self._back_off_seconds == 0.0:
            self._back_off_seconds = _FIRST_BACK_OFF_SECONDS
            return
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._fail(f"{self._title}: its process ended ({how}); the next one starts in {self._back_off_seconds:.0f} s")
        self._delay(self._clock.monotonic_ns())

    def _delay(self, now_ns: int) -> None:
        self._start_ns = now_ns + int(self._back_off_seconds * 1e9)
        self._back_off_seconds = min(self._back_off_seconds * 2, _LONGEST_BACK_OFF_SECONDS)

    def _slow(self, seconds: float) -> str:
        return f"{self._title} has not answered within {seconds:.1f} s"

    def _fail(self, sentence: str) -> None:
        self._errors_total += 1
        self._result = Unavailable(sentence, self._clock.monotonic_ns())
