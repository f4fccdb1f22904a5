"""A dead-man's switch: asks an address while the daemon's loop lives, so that its silence alerts somebody.

For services such as healthchecks.io: whoever expects the sign says when it is missing. It comes from the loop's own
`publish`; a loop that hangs gives none.
"""

import threading

import msgspec

from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.model.incident import NodeReport
from stallwatch.outputs.delivery import ChildPoster, Delivered, Poster
from stallwatch.outputs.poster import Request
from stallwatch.outputs.secret import secret_url

_ATTEMPT_SECONDS = 15.0


class Deadman:
    name = "deadman"

    def __init__(self, poster: Poster, clock: Clock, every_seconds: float) -> None:
        self._poster = poster
        self._clock = clock
        self._every_ns = int(every_seconds * 1e9)
        self._due_ns = 0
        self._problem: str | None = None
        self._wanted: bytes | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._worker: threading.Thread | None = None

    def start(self) -> None:
        self._worker = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._worker.start()

    def publish(self, report: NodeReport) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self._every_ns
        sign = {"node": report.snapshot.node, "tick": report.snapshot.tick, "ranks": len(report.ranks)}
        with self._changed:
            self._wanted = msgspec.json.encode(sign)
            self._changed.notify()

    def problem(self) -> str | None:
        return self._problem

    def close(self, seconds: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._poster.cancel()
        if self._worker is not None:
            self._worker.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._wanted is not None)
                body, self._wanted = self._wanted, None
            if self._closing or body is None:
                return
            outcome = self._poster.post(body, _ATTEMPT_SECONDS)
            self._problem = None if isinstance(outcome, Delivered) else f"no sign of life sent: {outcome.reason}"


def deadman(config: Config, clock: Clock) -> Deadman | None:
    """The output, or None where no address is configured. Raise UsageError for one that cannot be used."""
    url = secret_url("deadman.url", config.deadman.url, config.deadman.url_file)
    if url is None:
        return None
    return Deadman(ChildPoster(Request("json", url, msgspec.Raw(b"{}"), 0)), clock, config.deadman.every_seconds)
