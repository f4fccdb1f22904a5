"""The two clocks of a node, moved by a test alone."""

from stallwatch.clock import SECOND_NS as SECOND_NS

WALL_NS = 1_767_225_600 * SECOND_NS  # 2026-01-01T00:00:00Z


class FakeClock:
    """Satisfies `stallwatch.clock.Clock`; `seconds` and `monotonic_ns` stand for `time.monotonic` and its twin.

    Both clocks move together, by `advance` or by setting `now_ns`, and by `look_takes_ns` whenever somebody looks.
    """

    def __init__(self, now_ns: int = 0, *, wall_ns: int = WALL_NS, look_takes_ns: int = 0) -> None:
        """Given what the monotonic clock and the wall clock show at the begin, in nanoseconds."""
        self.now_ns = now_ns
        self._wall_ahead_ns = wall_ns - now_ns
        self._look_takes_ns = look_takes_ns

    def monotonic_ns(self) -> int:
        self.now_ns += self._look_takes_ns
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns + self._wall_ahead_ns

    def seconds(self) -> float:
        return self.monotonic_ns() / SECOND_NS

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)
