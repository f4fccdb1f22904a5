"""Tells people who are not looking: at least once, in order, over restarts and outages of the other side.

The loop only decides and queues; a worker thread writes the spool and waits out back-off. Each delivery has a thread of
its own: a service that takes its time with one keeps no critical message of another job waiting.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from stallwatch.clock import Clock, iso
from stallwatch.encoding import json_of
from stallwatch.errors import StallwatchError, UsageError
from stallwatch.incidents.delivery_steps import Step, covered, due, verdict_key
from stallwatch.model.incident import Incident, NodeReport, OutputTold, Severity, StandsAt
from stallwatch.node.disk import DiskChildEnded, DiskHangs
from stallwatch.outputs import company
from stallwatch.outputs.back_off import BackOff
from stallwatch.outputs.company_turns import CompanyTurns
from stallwatch.outputs.delivery import ATTEMPT_SECONDS, Delivered, DeliveryResult, Later, ReadyPoster
from stallwatch.outputs.documents import HeldMessages
from stallwatch.outputs.left_messages import LeftMessages
from stallwatch.outputs.rate_cap import NoCap, RateCap
from stallwatch.outputs.spool import Message, Spool, SpoolFile

logger = logging.getLogger("stallwatch.outputs")

# Nobody acts on yesterday's stall. By wall time, which lives over a restart; a day is so long that steps do not matter.
_OLDEST_SECONDS = 24 * 3600.0
_SAVE_AGAIN_SECONDS = 5.0  # after a disk has not taken what was told
_AFTER_ERROR_SECONDS = 1.0  # until the worker goes on after an error of ours, or without memory
_REST_SECONDS = 60.0  # after the last word: until then what writes them down is kept


class MessageFormat(Protocol):
    """What a notifier's messages say; pure."""

    def message(self, incident: Incident, step: Step, report: NodeReport) -> Mapping[str, object]:
        """The body that tells this step of an incident."""

    def line(self, incident: Incident, step: Step) -> str:
        """The same in one line, for a digest."""
        ...

    def readers(self, incident: Incident) -> str:
        """The channel that is told of it; "" where there is one for all."""
        ...

    def digest(self, lines: Sequence[str]) -> Mapping[str, object]:
        """The body that tells many messages in a line each."""

    def test(self) -> Mapping[str, object]:
        """The body of a test alert."""


class _Batch(NamedTuple):
    """What goes out together: one message, or all that wait as a digest."""

    messages: tuple[Message, ...]
    doubted: bool  # an earlier attempt may have arrived


class Notifier:
    """An output that delivers a message for each step of an incident that is worth one."""

    def __init__(
        self,
        name: str,
        words: MessageFormat,
        poster: ReadyPoster,
        clock: Clock,
        file: SpoolFile,
        minimum: Severity,
        attempt_seconds: float = ATTEMPT_SECONDS,
        *,
        cap: RateCap | None = None,
        tells_people: bool = True,
    ) -> None:
        self.name = name
        self.tells_people = tells_people
        self._words = words
        self._poster = poster
        self._clock = clock
        self._file = file
        self._minimum = minimum
        self._attempt_seconds = attempt_seconds
        self._cap = cap or NoCap()
        self._changed = threading.Condition()
        self._spool = Spool()
        self._tried = self._spool
        self._save_again_ns: int | None = None  # the disk did not take it: from when on it is tried again
        self._left = LeftMessages()
        results = ("delivered", "repeated", "retried", "refused", "dropped")
        self._counts: Counter[str] = Counter(dict.fromkeys(results, 0))
        self._delivery_problem: str | None = None
        self._disk_problem: str | None = None
        self._back_off = BackOff()
        self._under_way: list[threading.Thread] = []
        self._turns = CompanyTurns(words.readers)
        self._expected: set[str] = set()  # incidents that may be told in a moment
        self._is_to_prepare = False
        self._rests_ns: int | None = None  # from when on nothing is kept ready; None: nothing is
        self._closing = False
        self._worker: threading.Thread | None = None

    def start(self) -> None:
        """Read what was told before, and begin to send; where the disk hangs, nothing is known of it. Raise UsageError
        where the folder cannot be used."""
        try:
            self._spool = self._tried = self._file.load()
        except DiskHangs as error:
            self._disk_problem = f"{error.strerror}; what was told before is not known"
            logger.warning("%s: %s", self.name, self._disk_problem)
        except DiskChildEnded as error:  # no fault of the configuration: who starts us again does so
            raise StallwatchError(f"{self._file.path}: {error.strerror}", "Start it again.") from error
        except OSError as error:
            raise UsageError(
                f"{self._file.path}: {error.strerror}",
                "Set daemon.state_directory (STALLWATCH_DAEMON_STATE_DIRECTORY) to a directory that you can write.",
            ) from error
        self._left = LeftMessages(self._spool.queue, self._clock.monotonic_ns())
        self._worker = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._worker.start()

    def publish(self, report: NodeReport) -> None:
        """Note the incidents that have taken a step to be told; sending is a thread's."""
        with self._changed:
            self._left.note(report.incidents)
            now = company.around(report)
            self._spool = company.settled(self._spool, now)
            self._turns.begin(self._clock.monotonic_ns())
            for incident in report.incidents:
                known = incident.incident_id
                if incident.together is not None and incident.together.told is not None:
                    elsewhere = incident.together.told.outputs.get(self.name)
                    self._spool = self._spool.with_delivered(known, elsewhere) if elsewhere else self._spool
                told = self._spool.told.get(known, ())
                step = due(incident, told, self._minimum, self._spool.verdicts.get(known, ""))
                if step is None:
                    continue
                spared = company.spared(self._spool, incident, step, now)
                if spared is not None:
                    self._spool = spared
                elif not (self.tells_people and self._turns.waits(incident, step, self._spool, now)):
                    self._queue(incident, step, report, now)
            self._spool = self._spool.forget({incident.incident_id for incident in report.incidents})
            expected = {incident.incident_id for incident in report.incidents if _is_told_soon(incident)}
            self._is_to_prepare |= not expected <= self._expected
            self._expected = expected
            self._changed.notify_all()

    def _queue(self, incident: Incident, step: Step, report: NodeReport, now: company.Around) -> None:
        body = msgspec.Raw(json_of(self._words.message(incident, step, report)))
        line = self._words.line(incident, step)
        critical = incident.severity == "critical" and step in ("told", "escalated")
        job, queued_ns = incident.job, self._clock.wall_ns()
        message = Message(
            incident.incident_id, step, queued_ns, body, line, False, job.owner, job.training_job, critical,
            shared=incident.together is not None,
        )  # fmt: skip
        self._spool, dropped = self._spool.with_message(message, covered(incident, step), verdict_key(incident))
        self._counts["dropped"] += dropped
        if self.tells_people:  # a program reads each incident by itself
            readers = self._words.readers(incident)  # who reads another channel is told there
            alike = [one for one in report.incidents if self._words.readers(one) == readers]
            meeting = now.meeting(incident, readers)
            self._spool = company.with_named(self._spool, incident, step, alike, meeting)

    def notify_test(self, seconds: float) -> str:
        """Deliver a test now, past the queue, within so many seconds; return how that went, in words."""
        outcome = self._poster.post(json_of(self._words.test()), seconds)
        if isinstance(outcome, Delivered):
            return f"delivered ({outcome.detail})"
        return f"not delivered: {outcome.reason}"

    def problem(self) -> str | None:
        """Why people may not be told, None where nothing is wrong: the worker, the last delivery, or the disk of the
        spool."""
        worker = self._worker
        if worker is not None and not worker.is_alive():
            return "its worker has stopped"
        return self._delivery_problem or self._disk_problem

    def deliveries(self) -> Mapping[str, int]:
        """How many messages were delivered, repeated, refused, retried or dropped since the start, by that word."""
        return dict(self._counts)

    def threads(self) -> Mapping[str, str]:
        """By incident, the thread of its first message."""
        return self._spool.threads

    def delivered(self, incident_id: str) -> OutputTold:
        """What has left, for the nodes that share the incident: whoever speaks next goes on from there."""
        return self._spool.delivered(incident_id)

    def stands(self, incidents: Sequence[Incident]) -> tuple[StandsAt, ...]:
        """Which of these stand where incidents of other nodes may, and which wait for their turn to be told."""
        return self._turns.stands(incidents, self._spool) if self.tells_people else ()

    def queued(self) -> int:
        """How many messages wait to be delivered."""
        return len(self._spool.queue)

    def held(self) -> tuple[HeldMessages, ...]:
        """Whose messages wait, and for what."""
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        return tuple(
            HeldMessages(
                self.name, one.owner, one.messages, self._cap.reason, iso(wall_ns + max(one.until_ns - now_ns, 0))
            )
            for one in self._cap.held(self._spool.queue, now_ns)
        )

    def close(self, seconds: float) -> None:
        """End the worker within so many seconds; what is still queued stays in the spool."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join(seconds / 2)
        self._poster.cancel()
        if self._worker is not None:
            self._worker.join(seconds / 2)

    def _work(self) -> None:
        going = True
        while going:
            try:
                going = self._turn()
            except Exception:  # the guard of this thread: without it nobody is told any more
                logger.exception("%s: tried again", self.name)
                time.sleep(_AFTER_ERROR_SECONDS)
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way)
        self._save()
        self._file.rest()

    def _turn(self) -> bool:
        """Do what is due next; return whether to go on."""
        batch = self._next()
        try:
            self._save()  # before the attempt: what was queued survives whatever happens next
            if self._closing:
                return False  # what waits goes out after the next start
            if batch is not None:
                self._begin(batch)
            elif self._is_to_prepare:
                self._prepare()
            elif self._is_to_rest():
                self._rests_ns = None
                self._file.rest()
        except Exception as error:
            if batch is not None:
                with self._changed:
                    self._settle(batch, Later(f"{type(error).__name__}: {error}"))
            raise
        return True

    def _next(self) -> _Batch | None:
        """Wait until something is due, or until there is something to write down; return what goes out together."""
        with self._changed:
            while not (self._closing or self._has_work() or self._choose()):
                self._changed.wait(self._seconds_to_wait())
            if self._closing:
                return None
            self._drop_old()
            waiting = self._choose()
            if not waiting:
                return None
            places = [place for place, one in enumerate(self._spool.queue) if any(one is other for other in waiting)]
            doubted = any(message.begun for message in waiting)
            begun = self._spool.begun(waiting, begun=True)
            batch = _Batch(tuple(begun.queue[place] for place in places), doubted)
            self._cap.begin(waiting)  # from here on somebody settles it
            self._spool = begun
            return batch

    def _has_work(self) -> bool:
        return self._is_to_save() or self._is_to_prepare or self._is_to_rest()

    def _is_to_save(self) -> bool:
        """It has changed, or a disk that did not take it may do so now."""
        again = self._save_again_ns is not None and self._clock.monotonic_ns() >= self._save_again_ns
        return self._spool is not self._tried or again

    def _prepare(self) -> None:
        """While an incident is still looked at: on a busy node the start of what tells of it takes a second."""
        self._is_to_prepare = False
        self._rests_ns = self._clock.monotonic_ns() + int(_REST_SECONDS * 1e9)
        self._file.be_ready()
        self._poster.be_ready()

    def _is_to_rest(self) -> bool:
        return self._rests_ns is not None and self._clock.monotonic_ns() >= self._rests_ns

    def _choose(self) -> tuple[Message, ...]:
        now_ns = self._clock.monotonic_ns()
        return self._back_off.chosen(self._cap, self._left.ready(self._spool.queue, now_ns), now_ns)

    def _seconds_to_wait(self) -> float | None:
        """Until something may be due that is not now; None where that is for others to say."""
        now_ns = self._clock.monotonic_ns()
        moments = [self._rests_ns or 0, self._save_again_ns or 0]
        if self._spool.queue:
            budget_ns = self._cap.not_before_ns(self._spool.queue, now_ns) or 0
            moments += [*self._back_off.moments_ns(), budget_ns, self._left.until_ns]
        later = [moment_ns for moment_ns in moments if moment_ns > now_ns]
        return (min(later) - now_ns) / 1e9 if later else None

    def _begin(self, batch: _Batch) -> None:
        thread = threading.Thread(target=self._deliver, args=(batch,), name=f"{self.name} delivery", daemon=True)
        with self._changed:
            self._under_way.append(thread)
        try:
            thread.start()
        except BaseException:
            with self._changed:
                self._under_way.remove(thread)
            raise

    def _deliver(self, batch: _Batch) -> None:
        outcome: DeliveryResult = Later("the daemon is ending")
        try:
            if not self._closing:
                outcome = self._attempt(batch.messages)
        except Exception as error:  # noqa: BLE001  the guard of this thread: the message is still to be delivered
            outcome = Later(f"{type(error).__name__}: {error}")
        with self._changed:
            try:
                self._settle(batch, outcome)
            finally:
                self._under_way.remove(threading.current_thread())
                self._changed.notify_all()

    def _drop_old(self) -> None:
        oldest_ns = self._clock.wall_ns() - _OLDEST_SECONDS * 1e9
        old = [message for message in self._spool.queue if message.queued_wall_ns < oldest_ns]
        self._spool = self._spool.without(old)
        self._counts["dropped"] += len(old)
        self._delivery_problem = None if old else self._delivery_problem

    def _attempt(self, messages: tuple[Message, ...]) -> DeliveryResult:
        if len(messages) == 1:
            thread = self._spool.threads.get(messages[0].incident_id, "")
            return self._poster.post(bytes(messages[0].body), self._attempt_seconds, thread)
        digest = self._words.digest([message.line for message in messages])
        return self._poster.post(json_of(digest), self._attempt_seconds)

    def _settle(self, batch: _Batch, outcome: DeliveryResult) -> None:
        messages, now_ns = batch.messages, self._clock.monotonic_ns()
        self._cap.end(messages, now_ns, arrived=isinstance(outcome, Delivered))
        self._back_off.note(messages, outcome, now_ns)
        if isinstance(outcome, Delivered):
            self._finish(messages, "repeated" if batch.doubted else "delivered", None, outcome.thread)
            return
        first = messages[0]
        logger.warning("%s: incident %s, %s: %s", self.name, first.incident_id, first.step, outcome.reason)
        if isinstance(outcome, Later):
            self._counts["retried"] += 1
            self._delivery_problem = f"not delivered yet: {outcome.reason}"
            if not outcome.perhaps_delivered and not batch.doubted:
                self._spool = self._spool.begun(messages, begun=False)
        else:
            self._finish(messages, "refused", f"refused: {outcome.reason}")

    def _finish(self, messages: tuple[Message, ...], result: str, problem: str | None, thread: str = "") -> None:
        first = messages[0].incident_id
        self._spool = self._spool.without(messages)
        if thread and len(messages) == 1 and first not in self._spool.threads:
            self._spool = self._spool.with_thread(first, thread)
        self._counts[result] += len(messages)
        self._delivery_problem = problem

    def _save(self) -> None:
        current = self._spool
        if not self._is_to_save():
            return
        self._tried, self._save_again_ns = current, self._clock.monotonic_ns() + int(_SAVE_AGAIN_SECONDS * 1e9)
        try:
            self._rests_ns = self._clock.monotonic_ns() + int(_REST_SECONDS * 1e9)
            self._file.save(current)
            self._disk_problem = self._save_again_ns = None
        except OSError as error:
            self._disk_problem = (
                f"{self._file.path}: {error.strerror}; after a restart messages may be repeated or lost"
            )


def _is_told_soon(incident: Incident) -> bool:
    """Nobody was told yet, and what was found does not pass by itself."""
    untold = incident.severity == "none" and not incident.muted and not incident.is_over
    return untold and any(not finding.resolvable for finding in incident.findings)
