"""How many messages a channel gets in a while: pure. What is more waits and goes out together."""

from collections import deque

_NS = 1_000_000_000


class RateCap:
    """At most `messages` in any `seconds`; when more wait than may still be sent, all of them are one digest."""

    def __init__(self, messages: int, seconds: float) -> None:
        self._messages = messages
        self._window_ns = int(seconds * _NS)
        self._sent_ns: deque[int] = deque(maxlen=messages)

    def sent(self, now_ns: int) -> None:
        self._sent_ns.append(now_ns)

    def not_before_ns(self) -> int:
        """CLOCK_MONOTONIC from which on the next message may go; 0 when it may at once."""
        return self._sent_ns[0] + self._window_ns if len(self._sent_ns) == self._messages else 0

    def together(self, waiting: int, now_ns: int) -> int:
        """Given how many messages wait, return how many of them go out as one: 1, or all."""
        recent = sum(1 for moment in self._sent_ns if moment + self._window_ns > now_ns)
        return 1 if waiting <= self._messages - recent else waiting


class NoCap(RateCap):
    """For programs, which read as fast as we write."""

    def __init__(self) -> None:
        super().__init__(1, 0.0)

    def together(self, waiting: int, now_ns: int) -> int:
        return 1
