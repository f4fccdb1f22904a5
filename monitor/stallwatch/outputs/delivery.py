"""One attempt to deliver a message: what came of it, and the child that makes it."""

import contextlib
import email.utils
import threading
import time
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec

from stallwatch.encoding import json_of
from stallwatch.node.children import module_of_ours, start_own
from stallwatch.node.worker import Worker
from stallwatch.outputs.poster import KEEP_SECONDS, PostAnswer, PostRequest

_ANSWER = msgspec.json.Decoder(PostAnswer)

_COMMAND = module_of_ours("stallwatch.outputs.poster")
ATTEMPT_SECONDS = 15.0  # until an answer to a message must have come
_LONGEST_WAIT_SECONDS = 3600.0  # a server that asks for more is asked again after this


class Delivered(NamedTuple):
    """A message that arrived."""

    detail: str
    thread: str = ""  # where what follows belongs, for a service that has threads


class Later(NamedTuple):
    """Worth another attempt; `after_seconds` is what the server asked for, None when it asked for nothing."""

    reason: str
    after_seconds: float | None = None
    perhaps_delivered: bool = False  # nobody knows: it was sent, and no answer came


class Refused(NamedTuple):
    """Another attempt would be refused too."""

    reason: str


DeliveryResult = Delivered | Later | Refused


class Poster(Protocol):
    """One way to a service that is told of incidents, for one message at a time."""

    def post(self, body: bytes, seconds: float, thread: str = "") -> DeliveryResult:
        """Deliver a JSON body, in a thread of the service; come back within `seconds`, whatever the network does."""
        ...

    def cancel(self) -> None:
        """Give up what is under way; called from another thread."""
        ...


class ReadyPoster(Poster, Protocol):
    """Delivers several at a time, each from a thread of its own."""

    def be_ready(self) -> None:
        """There may be something to deliver in a moment: have that started which takes long to start."""
        ...


class ChildPoster:
    """Delivers through child processes that are killed at the deadline, one for each delivery that is under way. The
    last one stays for a while, for messages seldom come alone, and a busy node starts none in a second."""

    def __init__(self, request: PostRequest) -> None:
        self._request = request
        self._lock = threading.Lock()
        self._idle: list[_Sender] = []
        self._busy: list[_Sender] = []

    def post(self, body: bytes, seconds: float, thread: str = "") -> DeliveryResult:
        """Send a body in a child that may be lost; return what came of it, within about `seconds`. Raise nothing."""
        request = msgspec.structs.replace(self._request, body=msgspec.Raw(body), seconds=seconds, thread=thread)
        with self._lock:
            sender = self._idle.pop() if self._idle else _Sender(request.kind)
            self._busy.append(sender)
        try:
            return sender.post(request)
        finally:
            self._give_back(sender)

    def _give_back(self, sender: "_Sender") -> None:
        with self._lock:
            self._busy.remove(sender)
            is_one_too_many = bool(self._idle)
            if not is_one_too_many:
                self._idle.append(sender)
        if is_one_too_many:
            sender.end()

    def be_ready(self) -> None:
        """Start a child unless one is busy, so that the next message need not wait for an interpreter."""
        with self._lock:
            if self._busy:
                return
            sender = self._idle.pop() if self._idle else _Sender(self._request.kind)
            self._busy.append(sender)
        with contextlib.suppress(OSError):  # whoever needs it says so
            sender.be_ready()
        self._give_back(sender)

    def cancel(self) -> None:
        """Kill the children that deliver something, and let the idle one end."""
        with self._lock:
            idle, self._idle = self._idle, []
            for sender in self._busy:
                sender.kill()
        for sender in idle:
            sender.end()


class _Sender:
    """One child; for one thread at a time."""

    def __init__(self, kind: str) -> None:
        self._worker = Worker(start_own((*_COMMAND, kind)))
        self._used = 0.0

    def post(self, request: PostRequest) -> DeliveryResult:
        deadline = time.monotonic() + request.seconds
        try:
            if not self._ask(json_of(request), deadline):
                return Later("the process that sends it does not listen")
            outcome = self._answer(deadline)
        except OSError as error:
            return Later(f"cannot start a process to send it: {error.strerror}")
        finally:
            self._used = time.monotonic()
        return outcome or Later(f"no answer within {request.seconds:.0f} s", perhaps_delivered=True)

    def be_ready(self) -> None:
        """Start a child that waits, where none does. Raise OSError."""
        if self._worker.pid is not None and (self._is_old() or self._worker.has_ended):
            self.end()
        if self._worker.pid is None:
            self._worker.start()
            self._used = time.monotonic()

    def kill(self) -> None:
        """From any thread: who waits for it sees its end."""
        self._worker.kill()

    def _ask(self, request: bytes, deadline: float) -> bool:
        """Raise OSError when there is nobody to ask."""
        if self._is_old():
            self.end()
        for _ in range(2):
            if self._worker.pid is None:
                self._worker.start()
            try:
                if self._worker.ask(request, deadline):
                    return True
            except BrokenPipeError:
                pass  # it had ended, and sent nothing
            self.end()
        return False

    def _answer(self, deadline: float) -> DeliveryResult | None:
        while True:
            with contextlib.suppress(ValueError, msgspec.MsgspecError):
                for message in self._worker.messages():
                    self._worker.asked = None
                    return judge(_ANSWER.decode(message))
            if self._worker.has_ended:
                self.end()
                return Later("the sending process ended without an answer")
            if not self._worker.wait(deadline):
                self.end()
                return None

    def _is_old(self) -> bool:
        """It may be about to go."""
        return time.monotonic() - self._used > KEEP_SECONDS / 2

    def end(self) -> None:
        self._worker.kill()
        self._worker.end()


def judge(answer: PostAnswer) -> DeliveryResult:
    """Given a server's answer, return what it means for the message."""
    if answer.status is None:
        return Later(answer.detail, perhaps_delivered=answer.perhaps_delivered)
    words = f"{answer.status} {answer.detail}".strip()
    if 200 <= answer.status < 300:
        return Delivered(words, answer.thread)
    # A redirect for now is a login page or a portal in the way; a permanent one is a wrong address.
    if answer.status in (302, 303, 307, 408, 425, 429) or answer.status >= 500:
        return Later(words, _seconds(answer.retry_after))
    return Refused(words)


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After of RFC 9110: seconds or a date."""
    if not retry_after:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(retry_after)
        except ValueError:
            return None
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS) if seconds == seconds else None
