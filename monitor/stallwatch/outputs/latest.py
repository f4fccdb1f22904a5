"""What was published last, as bytes ready to serve, and whether that is recent."""

from typing import NamedTuple

import msgspec

from stallwatch.clock import Clock
from stallwatch.model.incident import NodeReport
from stallwatch.outputs.documents import Problem, Readiness, incident_list, rank_list, readiness
from stallwatch.outputs.metric_memory import Memory
from stallwatch.outputs.metric_samples import OutputHealth
from stallwatch.outputs.metrics import render

_STALE_TICKS = 5
_STALE_FLOOR_SECONDS = 10.0  # a loaded node may skip some ticks; one that skips ten seconds of them is not well


class Published(NamedTuple):
    report: NodeReport
    metrics: bytes
    ranks: bytes
    incidents: bytes
    readiness: Readiness


class Latest:
    """Written by the daemon's loop, read by the server's thread: one reference, replaced whole."""

    def __init__(self, clock: Clock, tick_seconds: float, external_url: str = "") -> None:
        self._clock = clock
        self._stale_seconds = max(_STALE_TICKS * tick_seconds, _STALE_FLOOR_SECONDS)
        self._memory = Memory()
        self._external_url = external_url
        self._published: Published | None = None
        self._changed_ns = clock.monotonic_ns()

    def publish(self, report: NodeReport, outputs: tuple[OutputHealth, ...]) -> None:
        problems = [(output.name, output.problem) for output in outputs if output.problem is not None]
        held = tuple(one for output in outputs for one in output.held)
        self._published = Published(
            report,
            render(report, outputs, self._memory, self._external_url),
            msgspec.json.encode(rank_list(report, tuple(f"{name}: {problem}" for name, problem in problems), held)),
            msgspec.json.encode(incident_list(report)),
            readiness(report, problems),
        )
        self._changed_ns = self._clock.monotonic_ns()

    def get(self) -> Published | None:
        return self._published

    def loop_problem(self) -> str | None:
        """A sentence when the loop has not published for too long."""
        silent = (self._clock.monotonic_ns() - self._changed_ns) / 1e9
        if silent <= self._stale_seconds:
            return None
        return f"the daemon's loop has published nothing for {silent:.0f} s"

    def ready(self) -> Readiness:
        """Ready when something was published lately and every required sensor answers."""
        problem = self.loop_problem()
        if self._published is None:
            problem = problem or "the daemon has not looked at the node yet"
        known = self._published.readiness if self._published else Readiness(ready=False, problems=())
        if problem is None:
            return known
        return Readiness(ready=False, problems=(Problem("loop", "loop", problem, required=True), *known.problems))
