"""One attempt to deliver a message: what came of it, and the child that makes it."""

import email.utils
import threading
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec

from stallwatch.node.children import module_of_ours
from stallwatch.node.run_once import Ended, RunOnce
from stallwatch.outputs.poster import Answer, Request

_ANSWER = msgspec.json.Decoder(Answer)

_LONGEST_WAIT_SECONDS = 3600.0  # a server that asks for more is asked again after this


class Delivered(NamedTuple):
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


Outcome = Delivered | Later | Refused


class Poster(Protocol):
    def post(self, body: bytes, seconds: float, thread: str = "") -> Outcome:
        """Deliver a JSON body, in a thread of the service; come back within `seconds`, whatever the network does."""
        ...

    def cancel(self) -> None:
        """Give up what is under way; called from another thread."""
        ...


class ChildPoster:
    """Delivers through a child process that is killed at the deadline."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._lock = threading.Lock()
        self._children: set[RunOnce] = set()

    def post(self, body: bytes, seconds: float, thread: str = "") -> Outcome:
        request = msgspec.structs.replace(self._request, body=msgspec.Raw(body), seconds=seconds, thread=thread)
        try:
            child = RunOnce(module_of_ours("stallwatch.outputs.poster"), msgspec.json.encode(request))
        except OSError as error:
            return Later(f"cannot start a process to send it: {error.strerror}")
        with self._lock:
            self._children.add(child)
        try:
            ended = child.finish(seconds)
        finally:
            with self._lock:
                self._children.discard(child)
        return Later(f"no answer within {seconds:.0f} s", perhaps_delivered=True) if ended is None else _read(ended)

    def cancel(self) -> None:
        with self._lock:
            for child in self._children:
                child.kill()


def _read(ended: Ended) -> Outcome:
    try:
        return judge(_ANSWER.decode(ended.output))
    except msgspec.MsgspecError:
        return Later(f"the sending process ended without an answer: {ended.last_words}"[:300])


def judge(answer: Answer) -> Outcome:
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
