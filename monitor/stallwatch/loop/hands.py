"""Does what the engine wants done: starts looks and judgements, keeps the bundles, and reports what came of it."""

import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from stallwatch.bundle.writer import BundleWriter
from stallwatch.config import Config
from stallwatch.incidents import slowness
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
from stallwatch.loop.bundles import Bundles
from stallwatch.loop.guard import StageGuard
from stallwatch.loop.judging import JudgeState
from stallwatch.loop.parts import Capturing, Judging, Starter
from stallwatch.loop.recording import Recording
from stallwatch.loop.ring import SnapshotRing
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import RankSample
from stallwatch.model.verdict import Report

log = logging.getLogger("stallwatch.incidents")


# Of each user at a time: his incidents, in any number, cost the looks and verdicts of others no core.
# Looks over some seconds (at slow ranks) are counted apart: one at a hang does not wait for them.
_MOST_LOOKS = 2
_MOST_JUDGEMENTS = 2
# And in a while: each is a start of Python or two, and a user can have as many deaths as he likes.
_MOST_IN_A_WHILE = 12
_WHILE_NS = 30_000_000_000


class _Look:
    def __init__(self, number: int, capture: Capturing, owner: str, *, lasts: bool) -> None:
        self.number = number
        self.owner = owner
        self.lasts = lasts
        self.capture = capture
        self.complete = False  # and said so


class _Pace:
    """How many of a kind each user has had begun in the last while."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._now_ns = monotonic_ns
        self._begun: dict[str, deque[int]] = {}

    def is_used_up(self, owner: str) -> bool:
        begun = self._begun.get(owner)
        return begun is not None and len(begun) >= _MOST_IN_A_WHILE and self._now_ns() - begun[0] < _WHILE_NS

    def begin(self, owner: str) -> None:
        now_ns = self._now_ns()
        self._begun = {one: begun for one, begun in self._begun.items() if now_ns - begun[-1] < _WHILE_NS}
        self._begun.setdefault(owner, deque(maxlen=_MOST_IN_A_WHILE)).append(now_ns)


def _is_same(one: StartCapture, other: Judge) -> bool:
    return one.incident.incident_id == other.incident.incident_id


class Hands:
    def __init__(
        self,
        config: Config,
        bundles: Bundles,
        ring: SnapshotRing,
        starter: Starter,
        guard: StageGuard,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._config = config
        self._starter = starter
        self._bundles = bundles
        self._ring = ring
        self._recording = Recording(ring)
        self._guard = guard
        self._looks: dict[str, _Look] = {}
        self._judgements: dict[str, tuple[Incident, int, Judging]] = {}
        self._waiting: list[StartCapture | Judge] = []  # until others of their user are done
        self._paces = {StartCapture: _Pace(monotonic_ns), Judge: _Pace(monotonic_ns)}
        self._news: list[Event] = []  # what could not even be started, and what moved

    @property
    def busy(self) -> bool:
        """Children are under way: poll soon."""
        return bool(self._looks or self._judgements or self._waiting or self._news)

    def do(self, actions: Sequence[Action]) -> None:
        """Carry out each action; one that fails is counted and, where the engine waits for it, becomes an event."""
        for action in actions:
            self._guard.run("incidents", type(action).__name__, partial(self._do, action))

    def catch_up(self) -> None:
        """Write down what could not be written before. Once a tick: the disk may answer again, or have room."""
        self._news += self._bundles.catch_up({*self._looks, *self._judgements})

    def poll(self) -> list[Event]:
        """Return what the children have come to since the last call. Never blocks."""
        events, self._news = self._news, []
        for incident_id in list(self._looks):
            events += self._polled_look(incident_id)
        for incident_id in list(self._judgements):
            events += self._polled_judgement(incident_id)
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
            self._guard.run("captures", "cancel", look.capture.cancel)
        for _, _, judging in self._judgements.values():
            self._guard.run("diagnosis", "cancel", judging.cancel)
        self._looks.clear()
        self._judgements.clear()
        self._waiting.clear()
        self._guard.run("diagnosis", "close", self._starter.close)

    def _do(self, action: Action) -> None:
        match action:
            case StartCapture() | Judge() if self._must_wait(action):
                self._waiting.append(action)
            case StartCapture(incident=incident, look=look):
                self._paces[StartCapture].begin(incident.job.owner)
                self._capture(incident, look)
            case CancelCapture(incident_id=incident_id):
                self._cancel_look(incident_id)
            case Judge(incident=incident, look=look):
                self._paces[Judge].begin(incident.job.owner)
                self._judge(incident, look)
            case Save(incident=incident):
                self._save(incident)
            case Discard(incident=incident):
                self._discard(incident)
            case Note(incident_id=incident_id, what=what):
                log.debug("incident=%s | %s", incident_id, what)

    def _must_wait(self, action: StartCapture | Judge) -> bool:
        owner = action.incident.job.owner
        if self._paces[type(action)].is_used_up(owner):
            return True
        if isinstance(action, Judge):
            # A stop is judged before its look is done, but not before that has begun: there would be nothing to read.
            if any(isinstance(one, StartCapture) and _is_same(one, action) for one in self._waiting):
                return True
            return sum(known.job.owner == owner for known, _, _ in self._judgements.values()) >= _MOST_JUDGEMENTS
        lasts = slowness.profile_seconds(action.incident, action.look) > 0
        others = (look for incident_id, look in self._looks.items() if incident_id != action.incident.incident_id)
        return sum(look.owner == owner and look.lasts == lasts for look in others) >= _MOST_LOOKS

    def _capture(self, incident: Incident, look: int) -> None:
        self._cancel_look(incident.incident_id)
        targets = self._ring.last_ranks_of(incident.job)
        try:
            incident, moved = self._bundles.begin_look(incident, partial(self._describe, incident, targets, look))
            self._news += [moved] if moved is not None else []
            capture = self._starter.capture(incident, look, targets, self._ring.gpus())
        except Exception as error:
            problem = f"look {look} could not be started: {error}"
            self._news.append(Captured(incident.incident_id, look, complete=False, done=True, problem=problem))
            raise
        lasts = slowness.profile_seconds(incident, look) > 0
        self._looks[incident.incident_id] = _Look(look, capture, incident.job.owner, lasts=lasts)

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
        self._judgements[incident.incident_id] = (incident, look, judging)

    def _polled_look(self, incident_id: str) -> list[Event]:
        look = self._looks[incident_id]
        state = self._guard.run("captures", "poll", look.capture.poll)
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

    def _polled_judgement(self, incident_id: str) -> list[Event]:
        incident, look, judging = self._judgements[incident_id]
        try:
            state = judging.poll()
        except Exception as error:  # noqa: BLE001  the daemon's per-stage guard
            state = JudgeState(None, f"{type(error).__name__}: {error}")
        if state is None:
            return []
        del self._judgements[incident_id]
        report = state.report
        if report is not None:
            self._guard.run("bundle", "verdict", lambda: self._conclude(incident, report))
        else:
            self._guard.count("diagnosis", "analyze", state.problem)
        return [Judged(incident_id, look, report, state.problem, state.summary)]

    def _conclude(self, incident: Incident, report: Report) -> None:
        writer = self._bundles.writer(incident)
        self._recording.write(writer)
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
            judgement[2].cancel()
        self._recording.end(self._bundles.writer(incident))
        self._bundles.discard(incident)
