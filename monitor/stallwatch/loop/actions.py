"""Does what the engine wants done: starts looks and judgements, keeps the bundles, and reports what came of it."""

import errno
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from stallwatch.bundle.writer import BundleWriter
from stallwatch.captures.folder import name_of_look
from stallwatch.captures.process import ended
from stallwatch.config import Config
from stallwatch.incidents import slowness
from stallwatch.incidents.life import IncidentLife
from stallwatch.incidents.messages import (
    Action,
    CancelCapture,
    Captured,
    Discard,
    Event,
    Judge,
    Judged,
    Note,
    Save,
    StartCapture,
)
from stallwatch.loop.bundle_store import BundleStore
from stallwatch.loop.judging import JudgeState
from stallwatch.loop.protocols import Capturing, Judging, Starter
from stallwatch.loop.recording import Recording
from stallwatch.loop.ring import SnapshotRing
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.loop.turns import Turns
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import RankSample
from stallwatch.model.verdict import Report

log = logging.getLogger("stallwatch.incidents")


class _LookUnderWay:
    def __init__(self, number: int, capture: Capturing, owner: str, began_ns: int, *, lasts: bool) -> None:
        self.number = number
        self.owner = owner
        self.began_ns = began_ns
        self.lasts = lasts
        self.capture = capture
        self.complete = False  # and said so


class _JudgementUnderWay(NamedTuple):
    incident: Incident
    look: int
    judging: Judging
    began_ns: int


def _is_same(one: StartCapture, other: Judge) -> bool:
    return one.incident.incident_id == other.incident.incident_id


class ActionRunner:
    """Does what the engine wants, and reports what came of it."""

    def __init__(
        self,
        config: Config,
        bundles: BundleStore,
        ring: SnapshotRing,
        starter: Starter,
        guard: StageGuard,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        turns: Turns | None = None,
    ) -> None:
        self._config = config
        self._starter = starter
        self._bundles = bundles
        self._ring = ring
        self._recording = Recording(ring)
        self._guard = guard
        self._looks: dict[str, _LookUnderWay] = {}
        self._judgements: dict[str, _JudgementUnderWay] = {}
        self._waiting: list[StartCapture | Judge] = []  # until others of their user are done
        self._now_ns = monotonic_ns
        self._turns = turns or Turns(monotonic_ns)
        self._news: list[Event] = []  # what could not even be started, and what moved

    @property
    def busy(self) -> bool:
        """Children are under way: poll soon."""
        return bool(self._looks or self._judgements or self._waiting or self._news)

    def do(self, actions: Sequence[Action]) -> None:
        """Carry out each action; one that fails is counted and, where the engine waits for it, becomes an event."""
        for action in actions:
            with self._guard.stage("incidents", type(action).__name__):
                self._do(action)

    def catch_up(self) -> None:
        """Write down what could not be written before. Once a tick: the disk may answer again, or have room."""
        self._news += self._bundles.catch_up({*self._looks, *self._judgements})

    def poll(self, lives: Sequence[IncidentLife] = ()) -> list[Event]:
        """Return what the children have come to since the last call. Never blocks. `lives`: what waits for them."""
        lost = self._lost(lives)
        events, self._news = self._news, []
        events += lost
        for incident_id in list(self._looks):
            events += self._polled_look(incident_id)
        alive = {life.incident.incident_id for life in lives}
        for incident_id in list(self._judgements):
            events += self._polled_judgement(incident_id, goes_on=incident_id in alive)
        waiting, self._waiting = self._waiting, []
        self.do(waiting)
        return events

    def configure(self, config: Config) -> None:
        """Use this for looks and judgements that begin from now on."""
        self._config = config
        self._starter.configure(config)

    def close(self) -> None:
        """Stop what is under way; no rank stays stopped."""
        for look in self._looks.values():
            with self._guard.stage("captures", "cancel"):
                look.capture.cancel()
        for judgement in self._judgements.values():
            with self._guard.stage("diagnosis", "cancel"):
                judgement.judging.cancel()
        self._looks.clear()
        self._judgements.clear()
        self._waiting.clear()
        with self._guard.stage("diagnosis", "close"):
            self._starter.close()

    def _do(self, action: Action) -> None:
        match action:
            case StartCapture() | Judge() if self._must_wait(action):
                self._waiting.append(action)
            case StartCapture(incident=incident, look=look):
                self._turns.begin("look", incident.job.owner)
                self._capture(incident, look)
            case CancelCapture(incident_id=incident_id):
                self._cancel_look(incident_id)
            case Judge(incident=incident, look=look):
                self._turns.begin("judgement", incident.job.owner)
                self._judge(incident, look)
            case Save(incident=incident):
                self._save(incident)
            case Discard(incident=incident):
                self._discard(incident)
            case Note(incident_id=incident_id, what=what):
                log.debug("incident=%s | %s", incident_id, what)

    def _must_wait(self, action: StartCapture | Judge) -> bool:
        owner, incident_id = action.incident.job.owner, action.incident.incident_id
        under_way = [
            *((look.owner, look.began_ns) for look in self._looks.values()),
            *((one.incident.job.owner, one.began_ns) for one in self._judgements.values()),
        ]
        if isinstance(action, Judge):
            # A stop is judged before its look is done, but not before that has begun: there would be nothing to read.
            if any(isinstance(one, StartCapture) and _is_same(one, action) for one in self._waiting):
                return True
            own = sum(one.incident.job.owner == owner for one in self._judgements.values())
            return not self._turns.may_begin("judgement", owner, own, under_way)
        lasts = slowness.profile_seconds(action.incident, action.look) > 0
        others = (look for known, look in self._looks.items() if known != incident_id)
        own = sum(look.owner == owner and look.lasts == lasts for look in others)
        return not self._turns.may_begin("look", owner, own, under_way)

    def _capture(self, incident: Incident, look: int) -> None:
        self._cancel_look(incident.incident_id)
        targets = self._ring.last_ranks_of(incident.job)
        try:
            incident, moved = self._bundles.begin_look(incident, partial(self._describe, incident, targets, look))
            self._news += [moved] if moved is not None else []
            capture = self._starter.capture(incident, look, targets, self._ring.gpus())
        except Exception as error:
            with self._guard.stage("bundle", "ends"):
                self._write_ends(incident, look, targets)
            problem = f"look {look} could not be started: {error}"
            self._news.append(Captured(incident.incident_id, look, complete=False, done=True, problem=problem))
            raise
        lasts = slowness.profile_seconds(incident, look) > 0
        self._looks[incident.incident_id] = _LookUnderWay(
            look, capture, incident.job.owner, self._now_ns(), lasts=lasts
        )

    def _write_ends(self, incident: Incident, look: int, targets: Sequence[RankSample]) -> None:
        """Who has ended, and how, needs no look: it is told though the privileged side stands for ever."""
        writer = self._bundles.writer(incident)
        for sample in targets:
            if sample.end is not None:
                writer.write_process(sample.rank, ended(sample, look), name_of_look("process.json", look))

    def _describe(self, incident: Incident, targets: Sequence[RankSample], look: int, writer: BundleWriter) -> None:
        if look == 1:
            writer.write_stopped(targets)
        if targets:
            latest = self._ring.latest
            wall_ns = latest.wall_ns if latest else incident.opened_wall_ns
            writer.write_description(targets, incident_id=incident.incident_id, wall_ns=wall_ns)
        writer.write_config(self._config)
        self._recording.write(writer)

    def _judge(self, incident: Incident, look: int) -> None:
        try:
            if problem := self._bundles.problem(incident):
                raise OSError(errno.ETIMEDOUT, problem)
            judging = self._starter.judge(incident)
        except Exception as error:
            self._news.append(Judged(incident.incident_id, look, None, f"analyze could not be started: {error}"))
            raise
        self._judgements[incident.incident_id] = _JudgementUnderWay(incident, look, judging, self._now_ns())

    def _lost(self, lives: Sequence[IncidentLife]) -> list[Event]:
        """What an incident waits for and nobody works on: an error, most often of memory, came between the engine and
        us. Unheard of, the incident would wait for ever, and nobody be told."""
        looked = {*self._looks, *(one.incident_id for one in self._news if isinstance(one, Captured))}
        judged = {*self._judgements, *(one.incident_id for one in self._news if isinstance(one, Judged))}
        for one in self._waiting:
            (judged if isinstance(one, Judge) else looked).add(one.incident.incident_id)
        found: list[Event] = []
        for life in lives:
            known = life.incident.incident_id
            if life.capturing and known not in looked:
                found.append(Captured(known, life.looks, complete=False, done=True, problem="the look was lost"))
            if life.judging and known not in judged:
                found.append(Judged(known, life.looks, None, "the judgement was lost"))
        return found

    def _polled_look(self, incident_id: str) -> list[Event]:
        look = self._looks[incident_id]
        state = None
        with self._guard.stage("captures", "poll"):
            state = look.capture.poll()
        if state is None:  # counted by the guard
            del self._looks[incident_id]
            return [Captured(incident_id, look.number, complete=False, done=True, problem="the look was lost")]
        if state.problem:
            self._guard.count("captures", "run", state.problem)
        news = state.done or (state.evidence_complete and not look.complete)
        look.complete = look.complete or state.evidence_complete
        if state.done:
            del self._looks[incident_id]
        if not news:
            return []
        return [Captured(incident_id, look.number, look.complete, state.done, state.missing, state.problem)]

    def _polled_judgement(self, incident_id: str, *, goes_on: bool) -> list[Event]:
        incident, look, judging, _ = self._judgements[incident_id]
        try:
            state = judging.poll()
        except Exception as error:  # noqa: BLE001  the daemon's per-stage guard
            state = JudgeState(None, f"{type(error).__name__}: {error}")
        if state is None:
            return []
        del self._judgements[incident_id]
        if state.report is not None:
            with self._guard.stage("bundle", "verdict"):
                self._conclude(incident, state.report, goes_on=goes_on)
        else:
            self._guard.count("diagnosis", "analyze", state.problem)
        return [Judged(incident_id, look, state.report, state.problem, state.summary)]

    def _conclude(self, incident: Incident, report: Report, *, goes_on: bool) -> None:
        writer = self._bundles.writer(incident)
        self._recording.write(writer)
        if not goes_on:  # it ended meanwhile, and nobody would say so again
            self._recording.end(writer)
        writer.write_verdict(report)

    def _save(self, incident: Incident) -> None:
        """What is noted of an incident (somebody is told, it ends) is in its timeline too."""
        self._bundles.save(incident)
        writer = self._bundles.writer(incident)
        if self._recording.has_begun(writer):
            if not self._bundles.problem(incident):
                self._recording.write(writer)
            if incident.is_over:
                self._recording.end(writer)

    def _cancel_look(self, incident_id: str) -> None:
        self._waiting = [
            one for one in self._waiting if isinstance(one, Judge) or one.incident.incident_id != incident_id
        ]
        look = self._looks.pop(incident_id, None)
        if look is not None:
            look.capture.cancel()

    def _discard(self, incident: Incident) -> None:
        self._cancel_look(incident.incident_id)
        self._waiting = [one for one in self._waiting if one.incident.incident_id != incident.incident_id]
        judgement = self._judgements.pop(incident.incident_id, None)
        if judgement is not None:
            judgement.judging.cancel()
        self._recording.end(self._bundles.writer(incident))
        self._bundles.discard(incident)
