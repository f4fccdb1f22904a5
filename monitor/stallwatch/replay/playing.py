"""Snapshots of the past through detectors and incident engine, on their own clock. Waits for nothing: what looks and
judgements came to says a witness."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from stallwatch.config import Config
from stallwatch.detectors.detection import Detected, Detection, DetectionState
from stallwatch.incidents.engine import Engine, Now
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import Action, CancelCapture, Captured, Discard, Judge, Judged, StartCapture
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey, NodeSnapshot

# After the last snapshot what is under way comes to its end; nothing begins any more.
_LAST_WORDS_NS = 60_000_000_000


class Witness(Protocol):
    """What came of looks and judgements, in a past in which nobody can look again. Times are CLOCK_MONOTONIC."""

    def captured(self, incident: Incident, look: int, at_ns: int) -> tuple[int, Captured] | None:
        """Given a look that is begun at `at_ns`, return what comes of it, and when; None: nothing ever does."""
        ...

    def judged(self, incident: Incident, look: int, at_ns: int) -> tuple[int, Judged] | None:
        """Given a look that is to be judged from `at_ns` on, return the judgement, and when it comes; None: it never
        does."""
        ...


class PlayedMoment(msgspec.Struct, frozen=True):
    """A tick, or a moment between two at which a look or a judgement came to its end (`snapshot` is None then)."""

    at_ns: int
    wall_ns: int
    snapshot: NodeSnapshot | None
    detected: Detected
    incidents: tuple[Incident, ...]  # open ones and those that ended lately, newest first
    actions: tuple[Action, ...]


def detect(
    config: Config, snapshots: Iterable[NodeSnapshot], guard: StageGuard | None = None
) -> Iterator[tuple[NodeSnapshot, Detected]]:
    """Feed snapshots, oldest first, through the detectors from nothing and yield what each tick found. As in the
    daemon, a step that raises costs its own tick, a detector that does its findings of that tick, and both are counted
    by `guard`; without one they raise here."""
    detection, state, detected = Detection(config), DetectionState(), Detected((), (), ())
    for snapshot in snapshots:
        with contextlib.nullcontext() if guard is None else guard.stage("detectors", "step"):
            state, detected = detection.step(state, snapshot)
            for error in detected.errors:
                if guard is None:
                    raise RuntimeError(f"{error.detector}: {error.error}")
                guard.count("detectors", error.detector, error.error)
        yield snapshot, detected


def play(
    config: Config,
    snapshots: Iterable[NodeSnapshot],
    witness: Witness,
    *,
    job: JobKey | None = None,
    guard: StageGuard | None = None,
) -> Iterator[PlayedMoment]:
    """Feed snapshots, oldest first, through detection and incidents from nothing, and yield every moment at which the
    daemon would have acted. `job`: incidents of this one alone. `guard` as in `detect`."""
    playback = _Playback(Engine(config), witness, job)
    for snapshot, detected in detect(config, snapshots, guard):
        yield from playback.between_ticks(snapshot.at_ns)
        yield playback.tick(snapshot, detected)
    yield from playback.last_words()


class _Playback:
    def __init__(self, engine: Engine, witness: Witness, job: JobKey | None) -> None:
        self._engine = engine
        self._witness = witness
        self._job = job
        self._lives = IncidentTable()
        self._coming: list[tuple[int, Captured | Judged]] = []
        self._last: tuple[NodeSnapshot, Detected] | None = None

    def tick(self, snapshot: NodeSnapshot, detected: Detected) -> PlayedMoment:
        self._last = snapshot, detected
        return self._advance(snapshot.at_ns, snapshot.wall_ns, snapshot)

    def between_ticks(self, until_ns: int) -> Iterator[PlayedMoment]:
        """What comes before the tick at `until_ns`: the daemon hears of it at once."""
        while self._last is not None and self._coming:
            at_ns = min(at_ns for at_ns, _ in self._coming)
            if at_ns >= until_ns:
                return
            before, _ = self._last
            at_ns = max(at_ns, before.at_ns)
            yield self._advance(at_ns, before.wall_ns + at_ns - before.at_ns, None)

    def last_words(self) -> Iterator[PlayedMoment]:
        if self._last is not None:
            yield from self.between_ticks(self._last[0].at_ns + _LAST_WORDS_NS)

    def _advance(self, at_ns: int, wall_ns: int, snapshot: NodeSnapshot | None) -> PlayedMoment:
        assert self._last is not None
        (latest, detected), job = self._last, self._job
        events = [event for due_ns, event in self._coming if due_ns <= at_ns]
        self._coming = [(due_ns, event) for due_ns, event in self._coming if due_ns > at_ns]
        findings = [finding for finding in detected.findings if job is None or finding.job == job]
        now = Now(at_ns, wall_ns, latest.node, findings, detected.jobs)
        self._lives, actions = self._engine.advance(self._lives, events, now)
        self._do(actions, at_ns)
        return PlayedMoment(at_ns, wall_ns, snapshot, detected, self._lives.incidents(), actions)

    def _do(self, actions: Sequence[Action], at_ns: int) -> None:
        for action in actions:
            match action:
                case StartCapture(incident=incident, look=look):
                    self._expect(self._witness.captured(incident, look, at_ns))
                case Judge(incident=incident, look=look):
                    self._expect(self._witness.judged(incident, look, at_ns))
                case CancelCapture(incident_id=incident_id):
                    self._forget(incident_id, (Captured,))
                case Discard(incident=incident):
                    self._forget(incident.incident_id, (Captured, Judged))

    def _expect(self, coming: tuple[int, Captured | Judged] | None) -> None:
        if coming is not None:
            self._coming.append(coming)

    def _forget(self, incident_id: str, kinds: tuple[type[Captured | Judged], ...]) -> None:
        self._coming = [
            (due_ns, event)
            for due_ns, event in self._coming
            if not (isinstance(event, kinds) and event.incident_id == incident_id)
        ]
