"""Plays generated jobs through the real detectors and the real incident engine, with a judge that knows the truth."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from stallwatch.config import Config
from stallwatch.detectors.detection import Detected, Detection, DetectionState
from stallwatch.incidents.engine import Engine, Now
from stallwatch.incidents.life import Lives
from stallwatch.incidents.messages import Captured, Discard, Event, Judge, Judged, StartCapture
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Report, Verdict, Where
from stallwatch.progress.kinds import Doing, kind_of
from tests.replay.healthy import START_NS, Fault, Moment, Stretch
from tests.unit.detectors.nodes import SECOND

# What the diagnosis says of a job in which this is done, at best and at worst: storage that stands cannot be told from
# storage that is stuck, and a rank that computes not from one that spins.
SAYS: dict[str, tuple[str, str | None]] = {
    "start": ("init_missing", "init"),
    "step": ("healthy", None),
    "evaluate": ("healthy", None),
    "alone": ("waiting", "user_code"),
    "storage": ("not_entered", "filesystem"),
    "idle": ("undecided", None),
    "hang": ("not_entered", "lock"),
    "death": ("rank_exited", None),
    "stop": ("process_stopped", None),
}


class Told(NamedTuple):
    seconds: float  # of the simulated clock
    severity: str
    cause: str
    reason: str


class Played(NamedTuple):
    hours: float
    told: tuple[Told, ...]
    suspicions: int
    fault: Fault | None
    found_after_seconds: float | None  # from the fault to a verdict that names its rank
    told_after_seconds: float | None
    slow: tuple[str, ...] = ()  # confirmed findings of a rank that is not slow


def play(moments: Iterable[Moment], config: Config | None = None) -> Played:
    """Feed a node's moments through detection and engine. A look takes a tick, and so does a judgement."""
    config = config or Config()
    detection, engine, state, lives = Detection(config), Engine(config), DetectionState(), Lives()
    waiting: list[Event] = []
    told: dict[str, Told] = {}
    slow: set[str] = set()
    suspicions, found_ns, told_ns, last, fault = 0, None, None, START_NS, None
    detected: Detected
    for moment in moments:
        at_ns = last = moment.snapshot.at_ns
        state, detected = detection.step(state, moment.snapshot)
        assert not detected.errors, detected.errors
        now = Now(at_ns, at_ns, "node0", detected.findings, detected.jobs)
        events, waiting = waiting, []
        lives, actions = engine.advance(lives, events, now)
        for action in actions:
            if isinstance(action, StartCapture):
                suspicions += action.look == 1
                waiting.append(Captured(action.incident.incident_id, action.look, complete=True, done=True))
            elif isinstance(action, Judge):
                report = judged(action.incident, moment.stretch)
                waiting.append(Judged(action.incident.incident_id, action.look, report))
            elif isinstance(action, Discard):
                waiting = [e for e in waiting if getattr(e, "incident_id", "") != action.incident.incident_id]
        fault = moment.fault or fault
        slow |= {f.reason for f in detected.findings if f.detector == "slow" and f.stage == "confirmed"}
        for incident in lives.incidents():
            verdict = incident.verdict
            if verdict and moment.fault and found_ns is None and verdict.culprits == (moment.fault.rank,):
                found_ns = at_ns if incident.state == "open" else None
            if incident.severity == "none":
                continue
            if moment.fault and told_ns is None:
                told_ns = at_ns
            if not moment.fault and incident.incident_id not in told:
                cause = verdict.cause if verdict else "none"
                reason = f"{moment.stretch} {incident.findings[0].reason if incident.findings else ''}"
                told[incident.incident_id] = Told((at_ns - START_NS) / SECOND, incident.severity, cause, reason)
    return Played(
        (last - START_NS) / SECOND / 3600,
        tuple(told.values()),
        suspicions,
        fault,
        _since(fault, found_ns),
        _since(fault, told_ns),
        tuple(sorted(slow)),
    )


def judged(incident: Incident, stretch: Stretch) -> Report:
    """What the diagnosis would say of this job now."""
    cause, where = SAYS[stretch.doing]
    culprits = () if stretch.culprit is None or cause in ("healthy", "undecided") else (stretch.culprit,)
    body = {"cause": cause, "culprits": culprits, "confidence": "certain", "summary": cause, "where": where}
    kind = kind_of(Doing(msgspec.convert(where or "unknown", Where)))
    verdict = msgspec.convert({**body, "ends_by_itself": kind if cause == "not_entered" else None}, Verdict)
    return Report(1, "0", incident.incident_id, None, None, None, None, True, (verdict,))


def _since(fault: Fault | None, at_ns: int | None) -> float | None:
    return None if fault is None or at_ns is None else (at_ns - START_NS) / SECOND - fault.at_seconds
