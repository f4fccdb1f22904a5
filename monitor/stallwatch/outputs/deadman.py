"""A dead-man's switch: asks an address while the daemon's loop lives, so that its silence alerts somebody.

For services such as healthchecks.io: whoever expects the sign says when it is missing. It comes from the loop's own
`publish`; a loop that hangs gives none.
"""

import msgspec

from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.encoding import json_of
from stallwatch.model.incident import NodeReport
from stallwatch.outputs.delivery import ATTEMPT_SECONDS, ChildPoster, Delivered, Poster
from stallwatch.outputs.latest_only_worker import LatestOnlyWorker
from stallwatch.outputs.poster import PostRequest
from stallwatch.outputs.secret import secret_url


class Deadman:
    """Tells a service at intervals that this daemon lives, so that its silence is an alert."""

    name = "deadman"

    def __init__(self, poster: Poster, clock: Clock, every_seconds: float) -> None:
        self._poster = poster
        self._clock = clock
        self._every_ns = int(every_seconds * 1e9)
        self._due_ns = 0
        self._problem: str | None = None
        self._signs = LatestOnlyWorker(self.name, self._send)

    def start(self) -> None:
        """Begin the thread that sends."""
        self._signs.start()

    def publish(self, report: NodeReport) -> None:
        """Give a sign of life, unless the last one is younger than the configured time."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self._every_ns
        sign = {"node": report.snapshot.node, "tick": report.snapshot.tick, "ranks": len(report.ranks)}
        self._signs.hand(json_of(sign))

    def problem(self) -> str | None:
        """Why the last sign of life was not sent; None when it was."""
        return self._problem

    def close(self, seconds: float) -> None:
        """Wait at most so many seconds for a sign under way, then cancel it."""
        self._signs.close(seconds, self._poster.cancel)

    def _send(self, sign: bytes) -> None:
        outcome = self._poster.post(sign, ATTEMPT_SECONDS)
        self._problem = None if isinstance(outcome, Delivered) else f"no sign of life sent: {outcome.reason}"


def deadman(config: Config, clock: Clock) -> Deadman | None:
    """The output, or None where no address is configured. Raise UsageError for one that cannot be used."""
    url = secret_url("deadman.url", config.deadman.url, config.deadman.url_file)
    if url is None:
        return None
    return Deadman(ChildPoster(PostRequest("json", url, msgspec.Raw(b"{}"), 0)), clock, config.deadman.every_seconds)
