"""How many messages a channel gets in a while, and whose turn it is: pure.

Each user has a budget of his own: what one of them causes, in any number, delays no other's. What is more waits and
goes out together. Ends of incidents have a budget beside that of news: that something is over costs nobody the next.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from stallwatch.clock import SECOND_NS
from stallwatch.outputs.spool import Message

_MOST_SERVED = 1_024
_ENDINGS = ("resolved", "ended", "acknowledged")
# Deliveries at a time: a service that takes its time with one keeps no critical message of another job waiting.
_MOST_UNDER_WAY = 8
_MOST_UNDER_WAY_OF_USER = 2


class WaitingMessages(NamedTuple):
    """Messages of one user that wait for room in his budget."""

    owner: str
    messages: int
    until_ns: int  # CLOCK_MONOTONIC when the next may go


class _Sent(NamedTuple):
    at_ns: int
    training_job: str


class _Purse(NamedTuple):
    """What shares a budget."""

    owner: str
    endings: bool


class _Head(NamedTuple):
    """The first message of an incident: what became of it is not told before it."""

    message: Message
    critical: bool  # it, or what waits behind it


class RateCap:
    """Of each user at most `messages` in any `seconds`, and as many ends; when more wait than may still be sent, all of
    his are one digest. A critical message of a job of his that has said nothing meanwhile goes all the same, up to as
    many again: his noisy job does not silence his others.

    One delivery is under way at a time, and beside it critical messages of other jobs alone."""

    def __init__(self, messages: int, seconds: float) -> None:
        self._messages = messages
        self._window_ns = int(seconds * SECOND_NS)
        self._sent: dict[_Purse, deque[_Sent]] = {}
        self._served: dict[str, int] = {}  # by owner, the turn at which he was served last
        self._turn = 0
        self._under_way: list[tuple[Message, ...]] = []

    @property
    def reason(self) -> str:
        """Why messages are held."""
        return f"the {self._messages} messages that a user has in {self._window_ns // SECOND_NS} s are used up"

    def begin(self, messages: Sequence[Message]) -> None:
        """An attempt is made for these, as one: others are next."""
        self._under_way.append(tuple(messages))
        self._turn += 1
        self._served.pop(messages[0].owner, None)
        self._served[messages[0].owner] = self._turn
        while len(self._served) > _MOST_SERVED:
            del self._served[next(iter(self._served))]  # as long ago as never

    def end(self, messages: Sequence[Message], now_ns: int, *, arrived: bool) -> None:
        """The attempt for these is over; they may have gone out."""
        incidents = _incidents(messages)
        self._under_way = [batch for batch in self._under_way if _incidents(batch) != incidents]
        if not arrived:
            return
        first = messages[0]
        of_owner = self._sent.setdefault(_purse_of(messages), deque(maxlen=2 * self._messages))
        of_owner.append(_Sent(now_ns, first.training_job))
        for purse in [purse for purse, sent in self._sent.items() if sent[-1].at_ns + self._window_ns <= now_ns]:
            del self._sent[purse]

    def chosen(
        self, queue: Sequence[Message], now_ns: int, *, only_critical: bool = False, last: Collection[str] = ()
    ) -> tuple[Message, ...]:
        """Given all that waits, oldest first, return what goes out next as one: a message, or a digest; () for nothing.

        Critical ones come first, then whoever was served least lately; of one incident the order stays. `last`: owners
        who come after all others.
        """
        heads = self._beside(_heads(queue), only_critical=only_critical)
        beside = only_critical or bool(self._under_way)
        found = [batch for purse in _purses(heads) if (batch := self._batch(purse, heads, queue, now_ns, beside))]
        critical = {head.message.incident_id for head in heads if head.critical}

        def rank(batch: tuple[Message, ...]) -> tuple[bool, bool, int]:
            owner = batch[0].owner
            is_critical = any(message.incident_id in critical for message in batch)
            return owner in last, not is_critical, self._served.get(owner, 0)

        return min(found, key=rank, default=())

    def not_before_ns(self, queue: Sequence[Message], now_ns: int) -> int | None:
        """CLOCK_MONOTONIC from which on a budget lets something of the queue go that it holds now; None where none
        does."""
        free = (self._free_ns(purse, now_ns) for purse in _purses(_heads(queue)))
        return min((moment_ns for moment_ns in free if moment_ns > now_ns), default=None)

    def held(self, queue: Sequence[Message], now_ns: int) -> tuple[WaitingMessages, ...]:
        """What waits for its user's budget."""
        held = []
        for owner in dict.fromkeys(message.owner for message in queue):
            own = [message for message in queue if message.owner == owner]
            heads = _heads(own)
            until_ns = self.not_before_ns(own, now_ns)
            if until_ns is not None and not any(
                self._batch(purse, heads, own, now_ns, False) for purse in _purses(heads)
            ):
                held.append(WaitingMessages(owner, len(own), until_ns))
        return tuple(held)

    def _beside(self, heads: Sequence[_Head], *, only_critical: bool) -> list[_Head]:
        """Those of which one may go out beside what is under way."""
        if not self._under_way and not only_critical:
            return list(heads)
        if len(self._under_way) >= _MOST_UNDER_WAY:
            return []
        jobs = {(one.owner, one.training_job) for batch in self._under_way for one in batch}
        of_user = Counter(batch[0].owner for batch in self._under_way)
        return [
            head
            for head in heads
            if head.critical
            and (head.message.owner, head.message.training_job) not in jobs
            and of_user[head.message.owner] < _MOST_UNDER_WAY_OF_USER
        ]

    def _batch(
        self, purse: _Purse, heads: Sequence[_Head], queue: Sequence[Message], now_ns: int, beside: bool
    ) -> tuple[Message, ...]:
        urgent = sorted((one for one in heads if _purse(one.message) == purse), key=lambda head: not head.critical)
        recent = self._recent(purse, now_ns)
        if len(recent) >= self._messages:
            heard = {sent.training_job for sent in recent}
            extra = (one.message for one in urgent if one.critical and one.message.training_job not in heard)
            return next(((one,) for one in extra if len(recent) < 2 * self._messages), ())
        waiting = [message for message in queue if message.owner == purse.owner]
        if beside or len([one for one in waiting if _purse(one) == purse]) <= self._messages - len(recent):
            return tuple(head.message for head in urgent[:1])
        return tuple(waiting)

    def _free_ns(self, purse: _Purse, now_ns: int) -> int:
        recent = self._recent(purse, now_ns)
        over = len(recent) - self._messages
        return recent[over].at_ns + self._window_ns if over >= 0 else 0

    def _recent(self, purse: _Purse, now_ns: int) -> list[_Sent]:
        sent = [one for one in self._sent.get(purse, ()) if one.at_ns + self._window_ns > now_ns]
        under_way = (batch for batch in self._under_way if _purse_of(batch) == purse)
        return [*sent, *(_Sent(now_ns, batch[0].training_job) for batch in under_way)]


class NoCap(RateCap):
    """For programs, which read as fast as we write."""

    def __init__(self) -> None:
        super().__init__(1, 0.0)

    def _batch(
        self, purse: _Purse, heads: Sequence[_Head], queue: Sequence[Message], now_ns: int, beside: bool
    ) -> tuple[Message, ...]:
        own = (head for head in heads if _purse(head.message) == purse)
        return tuple(head.message for head in sorted(own, key=lambda head: not head.critical)[:1])


def _heads(queue: Sequence[Message]) -> list[_Head]:
    first: dict[str, Message] = {}
    for message in queue:
        first.setdefault(message.incident_id, message)
    critical = {message.incident_id for message in queue if message.critical}
    return [_Head(message, incident_id in critical) for incident_id, message in first.items()]


def _purses(heads: Iterable[_Head]) -> list[_Purse]:
    return list(dict.fromkeys(_purse(head.message) for head in heads))


def _purse(message: Message) -> _Purse:
    return _Purse(message.owner, message.step in _ENDINGS)


def _purse_of(messages: Sequence[Message]) -> _Purse:
    """Of what goes out as one: ends only where it holds nothing else."""
    return _Purse(messages[0].owner, all(_purse(message).endings for message in messages))


def _incidents(messages: Iterable[Message]) -> frozenset[str]:
    return frozenset(message.incident_id for message in messages)
