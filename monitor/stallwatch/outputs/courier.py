"""Tells people who are not looking: at least once, in order, over restarts and outages of the other side.

The loop only decides and queues; a worker thread writes the spool, delivers, and waits out back-off.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from stallwatch.clock import Clock
from stallwatch.errors import UsageError
from stallwatch.model.incident import Incident, NodeReport, Severity
from stallwatch.outputs import spool as spools
from stallwatch.outputs.delivery import Delivered, Later, Outcome, Poster
from stallwatch.outputs.spool import Message, Spool
from stallwatch.outputs.telling import Step, covered, due

logger = logging.getLogger("stallwatch.outputs")

Compose = Callable[[Incident, Step], Mapping[str, object]]

_ATTEMPT_SECONDS = 15.0
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 300.0
# Nobody acts on yesterday's stall. By wall time, which lives over a restart; a day is so long that steps do not matter.
_OLDEST_SECONDS = 24 * 3600.0


class Courier:
    """An output that delivers a message for each step of an incident that is worth one."""

    def __init__(
        self,
        name: str,
        compose: Compose,
        poster: Poster,
        clock: Clock,
        state_directory: Path,
        minimum: Severity,
        test_message: Mapping[str, object],
        attempt_seconds: float = _ATTEMPT_SECONDS,
        *,
        tells_people: bool = True,
    ) -> None:
        self.name = name
        self.tells_people = tells_people
        self._compose = compose
        self._poster = poster
        self._clock = clock
        self._path = state_directory / f"{name}.json"
        self._minimum = minimum
        self._test_message = test_message
        self._attempt_seconds = attempt_seconds
        self._changed = threading.Condition()
        self._spool = Spool()
        self._saved = self._spool
        self._counts: Counter[str] = Counter({"delivered": 0, "retried": 0, "refused": 0, "dropped": 0})
        self._delivery_problem: str | None = None
        self._disk_problem: str | None = None
        self._attempts = 0  # of the message at the head of the queue
        self._not_before_ns = 0
        self._closing = False
        self._worker: threading.Thread | None = None

    def start(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._spool = self._saved = spools.load(self._path)
        except OSError as error:
            raise UsageError(
                f"{self._path}: {error.strerror}",
                "Set daemon.state_directory (STALLWATCH_DAEMON_STATE_DIRECTORY) to a directory that you can write.",
            ) from error
        self._worker = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._worker.start()

    def publish(self, report: NodeReport) -> None:
        with self._changed:
            for incident in report.incidents:
                step = due(incident, self._spool.told.get(incident.incident_id, ()), self._minimum)
                if step is not None:
                    self._queue(incident, step)
            self._spool = self._spool.forget({incident.incident_id for incident in report.incidents})
            self._changed.notify()

    def _queue(self, incident: Incident, step: Step) -> None:
        body = msgspec.Raw(msgspec.json.encode(self._compose(incident, step)))
        message = Message(incident.incident_id, step, self._clock.wall_ns(), body)
        self._spool, dropped = self._spool.with_message(message, covered(incident, step))
        self._counts["dropped"] += dropped

    def notify_test(self, seconds: float) -> str:
        outcome = self._poster.post(msgspec.json.encode(self._test_message), seconds)
        if isinstance(outcome, Delivered):
            return f"delivered ({outcome.detail})"
        return f"not delivered: {outcome.reason}"

    def problem(self) -> str | None:
        worker = self._worker
        if worker is not None and not worker.is_alive():
            return "its worker has stopped"
        return self._delivery_problem or self._disk_problem

    def deliveries(self) -> Mapping[str, int]:
        return dict(self._counts)

    def queued(self) -> int:
        return len(self._spool.queue)

    def close(self, seconds: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._worker is not None:
            self._worker.join(seconds / 2)
            self._poster.cancel()
            self._worker.join(seconds / 2)

    def _work(self) -> None:
        while True:
            message = self._next()
            self._save()  # before the attempt: what was queued survives whatever happens next
            if self._closing:
                return  # what waits goes out after the next start
            if message is None:
                continue
            if self._clock.wall_ns() - message.queued_wall_ns > _OLDEST_SECONDS * 1e9:
                self._finish(message, "dropped", None)
                continue
            self._settle(message, self._poster.post(bytes(message.body), self._attempt_seconds))
            self._save()

    def _next(self) -> Message | None:
        """Wait until a message is due, or until there is something to write down."""
        with self._changed:
            waiting_ns = self._not_before_ns - self._clock.monotonic_ns() if self._spool.queue else None
            self._changed.wait_for(
                lambda: self._closing or self._spool is not self._saved or self._is_due(),
                timeout=None if waiting_ns is None else max(waiting_ns / 1e9, 0),
            )
            return self._spool.queue[0] if self._is_due() else None

    def _is_due(self) -> bool:
        return bool(self._spool.queue) and self._clock.monotonic_ns() >= self._not_before_ns

    def _settle(self, message: Message, outcome: Outcome) -> None:
        self._attempts = self._attempts + 1 if isinstance(outcome, Later) else 0
        self._not_before_ns = self._clock.monotonic_ns() + int(_wait_seconds(outcome, self._attempts) * 1e9)
        if isinstance(outcome, Delivered):
            self._finish(message, "delivered", None)
            return
        logger.warning("%s: incident %s, %s: %s", self.name, message.incident_id, message.step, outcome.reason)
        if isinstance(outcome, Later):
            self._counts["retried"] += 1
            self._delivery_problem = f"not delivered yet: {outcome.reason}"
        else:
            self._finish(message, "refused", f"refused: {outcome.reason}")

    def _finish(self, message: Message, result: str, problem: str | None) -> None:
        with self._changed:
            self._spool = self._spool.without(message)
        self._counts[result] += 1
        self._delivery_problem = problem

    def _save(self) -> None:
        current = self._spool
        if current is self._saved:
            return
        try:
            spools.save(self._path, current)
            self._disk_problem = None
        except OSError as error:
            self._disk_problem = f"{self._path}: {error.strerror}; after a restart messages may be repeated or lost"
        self._saved = current


def _wait_seconds(outcome: Outcome, attempts: int) -> float:
    """Until the next attempt: what the server asked for, else longer and longer."""
    if not isinstance(outcome, Later):
        return 0.0
    if outcome.after_seconds is not None:
        return max(outcome.after_seconds, _FIRST_WAIT_SECONDS)
    return min(_FIRST_WAIT_SECONDS * 2.0 ** min(attempts - 1, 16), _LONGEST_WAIT_SECONDS)
