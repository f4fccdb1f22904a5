"""Ticks by deadline: a slow tick does not push the later ones, and how late each began is known.

A file of its own: its clock is the test's, and it knows nothing of what a tick does."""

from stallwatch.clock import SECOND_NS, Clock


class Schedule:
    """When the next tick is due, and how late this one is."""

    def __init__(self, clock: Clock, tick_seconds: float) -> None:
        self._clock = clock
        self._tick_ns = int(tick_seconds * SECOND_NS)
        self._due_ns = clock.monotonic_ns()

    def begin(self) -> float:
        """Begin the tick that is due and return how many seconds late it is; whole missed ticks are skipped."""
        now_ns = self._clock.monotonic_ns()
        late_ns = max(now_ns - self._due_ns, 0)
        self._due_ns += self._tick_ns * (1 + late_ns // self._tick_ns)
        return late_ns / SECOND_NS

    def hasten(self, at_ns: int) -> None:
        """Have the next tick at this moment if it would come later; those after it keep their distance from it."""
        self._due_ns = min(self._due_ns, max(at_ns, self._clock.monotonic_ns()))

    def remaining_seconds(self) -> float:
        """Seconds until the next tick is due, never negative."""
        return max(self._due_ns - self._clock.monotonic_ns(), 0) / SECOND_NS
