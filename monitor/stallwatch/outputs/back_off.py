"""When the next attempt may be, after some have failed: pure.

The wait is the service's: others fail there too. What was not tried yet and must not wait goes all the same, unless the
service itself has asked for quiet: it may be one message alone that it does not take.
"""

from collections.abc import Sequence

from stallwatch.clock import SECOND_NS
from stallwatch.outputs.delivery import DeliveryResult, Later
from stallwatch.outputs.rate_cap import RateCap
from stallwatch.outputs.spool import Message

_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 300.0


class BackOff:
    """When a service that failed may be asked again."""

    def __init__(self) -> None:
        self._attempts = 0  # in a row that failed
        self._not_before_ns = 0
        self._asked_until_ns = 0  # the service's own wish
        self._failed: set[tuple[str, str]] = set()  # owner and training job, since the last message that went out

    def note(self, messages: Sequence[Message], outcome: DeliveryResult, now_ns: int) -> None:
        """Take in what came of an attempt."""
        if not isinstance(outcome, Later):  # it answers
            self._attempts, self._not_before_ns = 0, now_ns
            self._failed.clear()
            return
        self._attempts += 1
        self._failed.update(map(_job, messages))
        after_ns = now_ns + int(_wait_seconds(outcome, self._attempts) * SECOND_NS)
        self._not_before_ns = max(self._not_before_ns, after_ns)
        if outcome.after_seconds is not None:
            self._asked_until_ns = max(self._asked_until_ns, after_ns)

    def chosen(self, cap: RateCap, queue: Sequence[Message], now_ns: int) -> tuple[Message, ...]:
        """Given all that waits, return what `cap` lets go out next of what may; () for nothing."""
        if not queue or now_ns < self._asked_until_ns:
            return ()
        if now_ns >= self._not_before_ns:
            return cap.chosen(queue, now_ns, last={owner for owner, _ in self._failed})
        untried = [message for message in queue if _job(message) not in self._failed]
        return cap.chosen(untried, now_ns, only_critical=True)

    def moments_ns(self) -> tuple[int, ...]:
        """CLOCK_MONOTONIC at which something may go that does not before."""
        return self._asked_until_ns, self._not_before_ns


def _job(message: Message) -> tuple[str, str]:
    return message.owner, message.training_job


def _wait_seconds(outcome: Later, attempts: int) -> float:
    """Until the next attempt: what the server asked for, else longer and longer."""
    if outcome.after_seconds is not None:
        return max(outcome.after_seconds, _FIRST_WAIT_SECONDS)
    return min(_FIRST_WAIT_SECONDS * 2.0 ** min(attempts - 1, 16), _LONGEST_WAIT_SECONDS)
