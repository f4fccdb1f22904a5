"""How many messages a channel gets in a while, and whose turn it is: pure.

Each user has a budget of his own: what one of them causes, in any number, delays no other's. What is more waits and
goes out together. Ends of incidents have a budget beside that of news: that something is over costs nobody the next.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stallwatch.outputs.spool import Message

_NS = 1_000_000_000
_MOST_SERVED = 1_024
_ENDINGS = ("resolved", "ended", "acknowledged")


class Held(NamedTuple):
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


class RateCap:
    """Of each user at most `messages` in any `seconds`, and as many ends; when more wait than may still be sent, all of
    his are one digest. A critical message of a job of his that has said nothing meanwhile goes all the same, up to as
    many again: his noisy job does not silence his others."""

    def __init__(self, messages: int, seconds: float) -> None:
        self._messages = messages
        self._window_ns = int(seconds * _NS)
        self._sent: dict[_Purse, deque[_Sent]] = {}
        self._served: dict[str, int] = {}  # by owner, the turn at which he was served last
        self._turn = 0

    @property
    def reason(self) -> str:
        """Why messages are held."""
        return f"the {self._messages} messages that a user has in {self._window_ns // _NS} s are used up"

    def served(self, messages: Sequence[Message]) -> None:
        """An attempt was made for these: others are next."""
        self._turn += 1
        self._served.pop(messages[0].owner, None)
        self._served[messages[0].owner] = self._turn
        while len(self._served) > _MOST_SERVED:
            del self._served[next(iter(self._served))]  # as long ago as never

    def sent(self, messages: Sequence[Message], now_ns: int) -> None:
        """These went out, as one."""
        first = messages[0]
        purse = _Purse(first.owner, all(_purse(message).endings for message in messages))
        of_owner = self._sent.setdefault(purse, deque(maxlen=2 * self._messages))
        of_owner.append(_Sent(now_ns, first.training_job))
        for purse in [purse for purse, sent in self._sent.items() if sent[-1].at_ns + self._window_ns <= now_ns]:
            del self._sent[purse]

    def chosen(self, queue: Sequence[Message], now_ns: int) -> tuple[Message, ...]:
        """Given all that waits, oldest first, return what goes out next as one: a message, or a digest; () for nothing.

        Critical ones come first, then whoever was served least lately; of one incident the order stays.
        """
        batches = [batch for purse in self._purses(queue) if (batch := self._batch(purse, queue, now_ns))]
        return min(batches, key=self._rank, default=())

    def not_before_ns(self, queue: Sequence[Message], now_ns: int) -> int:
        """CLOCK_MONOTONIC from which on something of the queue may go; 0 when it may at once or nothing waits."""
        if self.chosen(queue, now_ns):
            return 0
        return min((self._free_ns(purse, now_ns) for purse in self._purses(queue)), default=0)

    def held(self, queue: Sequence[Message], now_ns: int) -> tuple[Held, ...]:
        """What waits for its user's budget."""
        held = []
        for owner in dict.fromkeys(message.owner for message in queue):
            own = [message for message in queue if message.owner == owner]
            if not self.chosen(own, now_ns):
                held.append(Held(owner, len(own), self.not_before_ns(own, now_ns)))
        return tuple(held)

    def _batch(self, purse: _Purse, queue: Sequence[Message], now_ns: int) -> tuple[Message, ...]:
        heads = [message for message in _heads(queue) if _purse(message) == purse]
        recent = self._recent(purse, now_ns)
        urgent = sorted(heads, key=lambda message: not message.critical)
        if len(recent) >= self._messages:
            heard = {sent.training_job for sent in recent}
            extra = (one for one in urgent if one.critical and one.training_job not in heard)
            return next(((one,) for one in extra if len(recent) < 2 * self._messages), ())
        waiting = [message for message in queue if message.owner == purse.owner]
        if len([one for one in waiting if _purse(one) == purse]) <= self._messages - len(recent):
            return tuple(urgent[:1])
        return tuple(waiting)

    def _rank(self, batch: tuple[Message, ...]) -> tuple[bool, int]:
        return not any(message.critical for message in batch), self._served.get(batch[0].owner, 0)

    def _free_ns(self, purse: _Purse, now_ns: int) -> int:
        recent = self._recent(purse, now_ns)
        over = len(recent) - self._messages
        return recent[over].at_ns + self._window_ns if over >= 0 else 0

    def _recent(self, purse: _Purse, now_ns: int) -> list[_Sent]:
        return [sent for sent in self._sent.get(purse, ()) if sent.at_ns + self._window_ns > now_ns]

    @staticmethod
    def _purses(queue: Sequence[Message]) -> list[_Purse]:
        return list(dict.fromkeys(_purse(message) for message in _heads(queue)))


class NoCap(RateCap):
    """For programs, which read as fast as we write."""

    def __init__(self) -> None:
        super().__init__(1, 0.0)

    def _batch(self, purse: _Purse, queue: Sequence[Message], now_ns: int) -> tuple[Message, ...]:
        heads = [message for message in _heads(queue) if _purse(message) == purse]
        return tuple(sorted(heads, key=lambda message: not message.critical)[:1])


def _heads(queue: Sequence[Message]) -> Iterator[Message]:
    """The first message of each incident: what became of it is not told before it."""
    seen: set[str] = set()
    for message in queue:
        if message.incident_id not in seen:
            seen.add(message.incident_id)
            yield message


def _purse(message: Message) -> _Purse:
    return _Purse(message.owner, message.step in _ENDINGS)
