"""Plays generated jobs through the real detectors and the real incident engine, with a judge that knows the truth."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from stallwatch.config import Config
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.incidents.messages import Captured, Judged, StartCapture
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import NodeSnapshot
from stallwatch.model.verdict import Report, Verdict, Where
from stallwatch.progress.kinds import Doing, kind_of
from stallwatch.replay.playing import play as replayed
from tests.builders.clock import SECOND_NS
from tests.replay.healthy import ELSEWHERE, START_NS, Fault, Moment, Stretch

# What the diagnosis says of a job in which this is done, at best and at worst: storage that stands cannot be told from
# storage that is stuck, and a rank that computes not from one that spins.
SAYS: dict[str, tuple[str, str | None]] = {
    "load": ("healthy", None),
    "queue": ("undecided", None),
    "start": ("init_missing", "init"),
    "step": ("healthy", None),
    "evaluate": ("healthy", None),
    "alone": ("waiting", "user_code"),
    "storage": ("not_entered", "filesystem"),
    "idle": ("undecided", None),
    "export": ("undecided", None),
    "hang": ("not_entered", "lock"),
    "death": ("rank_exited", None),
    "stop": ("process_stopped", None),
}
_HERE = "0-7"  # all the ranks that a daemon of ours sees, and more where a job has fewer


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
    events: tuple[tuple[str, float], ...] = ()  # what was no steps, and for how many seconds of it
    looks: int = 0  # at ranks
    slow: tuple[str, ...] = ()  # confirmed findings of a rank that is not slow


class _KnowsTheTruth:
    """Satisfies stallwatch.replay.playing.Witness: a look takes a tick, and so does a judgement."""

    def __init__(self, moments: Iterable[Moment]) -> None:
        self._moments = moments
        self.moment: Moment

    def snapshots(self) -> Iterator[NodeSnapshot]:
        for moment in self._moments:
            self.moment = moment
            yield moment.snapshot

    def captured(self, incident: Incident, look: int, at_ns: int) -> tuple[int, Captured]:
        return at_ns + SECOND_NS, Captured(incident.incident_id, look, complete=True, done=True)

    def judged(self, incident: Incident, look: int, at_ns: int) -> tuple[int, Judged]:
        report = judged(incident, self.moment)
        return at_ns + SECOND_NS, Judged(incident.incident_id, look, report)


def play(moments: Iterable[Moment], config: Config | None = None) -> Played:
    """Feed a node's moments through detection and engine, as `stallwatch replay` does."""
    witness = _KnowsTheTruth(moments)
    told: dict[str, Told] = {}
    slow: set[str] = set()
    looks = 0
    suspicions, found_ns, told_ns, last, fault = 0, None, None, START_NS, None
    events: list[tuple[str, float]] = []
    doing: Stretch | None = None
    for played in replayed(config or Config(), witness.snapshots(), witness):
        if played.snapshot is None:
            continue  # what is under way when the moments end
        moment, at_ns = witness.moment, played.at_ns
        last = at_ns
        if moment.stretch is not doing:
            doing = moment.stretch
            if doing.doing != "step":
                events.append((_what(doing), doing.seconds))
        assert not played.detected.errors, played.detected.errors
        suspicions += sum(isinstance(action, StartCapture) and action.look == 1 for action in played.actions)
        looks += sum(isinstance(action, StartCapture) for action in played.actions)
        fault = moment.fault or fault
        slow |= {f.reason for f in played.detected.findings if f.detector == "slow" and f.stage == "confirmed"}
        for incident in played.incidents:
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
                told[incident.incident_id] = Told((at_ns - START_NS) / SECOND_NS, incident.severity, cause, reason)
    return Played(
        (last - START_NS) / SECOND_NS / 3600,
        tuple(told.values()),
        suspicions,
        fault,
        _since(fault, found_ns),
        _since(fault, told_ns),
        tuple(events),
        looks,
        tuple(sorted(slow)),
    )


def judged(incident: Incident, moment: Moment) -> Report:
    """What the diagnosis would say of this job now."""
    stretch = moment.stretch
    cause, where = SAYS[stretch.doing] if stretch.culprit != ELSEWHERE else ("undecided", None)
    culprits = () if stretch.culprit is None or cause in ("healthy", "undecided") else (stretch.culprit,)
    body: dict[str, object] = {
        "cause": cause,
        "culprits": culprits,
        "confidence": "certain",
        "summary": cause,
        "where": where,
    }
    if culprits:
        others = {rank.rank for rank in moment.snapshot.ranks if rank.end is None} - {stretch.culprit}
        body |= {"waiting": rank_ranges(others)}
    if stretch.doing == "queue":
        body |= {"waiting": _HERE}
    if stretch.culprit == ELSEWHERE:
        body |= {"waiting": _HERE, "missing": ("any evidence of ranks elsewhere",)}
    kind = kind_of(Doing(msgspec.convert(where or "unknown", Where)))
    verdict = msgspec.convert({**body, "ends_by_itself": kind if cause == "not_entered" else None}, Verdict)
    deadline = None if moment.deadline_ns is None else datetime.fromtimestamp(moment.deadline_ns // SECOND_NS, UTC)
    told = deadline.isoformat() if deadline else None
    return Report(1, "0", incident.incident_id, None, None, None, told, True, (verdict,))


def _what(stretch: Stretch) -> str:
    who = "" if stretch.culprit is None else " by one elsewhere" if stretch.culprit == ELSEWHERE else " by one"
    return f"{stretch.phase or stretch.doing}{who}"


def _since(fault: Fault | None, at_ns: int | None) -> float | None:
    return None if fault is None or at_ns is None else (at_ns - START_NS) / SECOND_NS - fault.at_seconds
