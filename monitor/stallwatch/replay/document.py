"""A bundle's replay as one document, of which a person's view and `--json` are made."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from stallwatch import __version__
from stallwatch import config as configuration
from stallwatch.bundle.past import History, read_history
from stallwatch.clock import SECOND_NS, iso
from stallwatch.config import Config
from stallwatch.detectors.detection import Detected
from stallwatch.errors import UnusableInput, UsageError
from stallwatch.incidents.delivery_steps import Step
from stallwatch.loop.renewal import changed
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.model.finding import Finding
from stallwatch.model.incident import UNTOLD, Incident, Severity
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Verdict
from stallwatch.outputs.documents import EventDocument, IncidentDocument, incident_document
from stallwatch.replay.playing import PlayedMoment, play
from stallwatch.replay.recorded import RecordedWitness, recorded_looks
from stallwatch.replay.voices import SaidByVoices, voices

SCHEMA_VERSION = 1


class ChangedKey(msgspec.Struct, frozen=True):
    """A setting that differs from the recorded one."""

    key: str  # "tell.storage_seconds"
    recorded: Any
    replayed: Any


class Timeline(msgspec.Struct, frozen=True):
    """What was recorded."""

    begins_at: str
    ends_at: str
    snapshots: int
    # From its beginning to that of the incident; negative: it begins later. None: nothing was found.
    history_seconds: float | None


class Decision(msgspec.Struct, frozen=True):
    """A tick at which detection found something else than at the tick before."""

    at: str
    after_seconds: float  # since the timeline begins
    tick: int
    findings: tuple[Finding, ...]


class LookVerdict(msgspec.Struct, frozen=True):
    """A recorded look, judged by this version: the primary verdict on all that was seen by then."""

    look: int
    at: str | None
    verdict: Verdict | None
    problem: str = ""


class ToldMessage(msgspec.Struct, frozen=True):
    """A message that would have been sent."""

    at: str
    after_seconds: float
    incident_id: str
    step: Step
    severity: Severity
    outputs: tuple[str, ...]
    line: str  # as the daemon's log has it


class Replay(msgspec.Struct, frozen=True):
    """What detection decided from a bundle's timeline."""

    schema_version: int
    tool_version: str
    bundle: str
    training_job: str | None
    owner: str | None
    node: str | None
    configuration: str  # where it comes from
    changed: tuple[ChangedKey, ...]
    timeline: Timeline | None
    detection: tuple[Decision, ...]
    looks: tuple[LookVerdict, ...]
    told: tuple[ToldMessage, ...]
    incidents: tuple[IncidentDocument, ...]
    at_the_time: tuple[EventDocument, ...]  # what the daemon that recorded it noted about telling people
    caveats: tuple[str, ...]


def replay_bundle(bundle: Path, config_file: Path | None = None) -> Replay:
    """Replay a bundle. Raise UnusableInput where it holds nothing to replay, UsageError for a bad configuration."""
    if not bundle.is_dir():
        what = "it is no folder" if bundle.exists() else "there is nothing of that name"
        raise UnusableInput(f"{bundle}: {what}", "Give an incident's folder, as `stallwatch incidents ID` names it.")
    history = read_history(bundle)
    config, changes, caveats = _configuration(history, config_file)
    witness = RecordedWitness(bundle, recorded_looks(bundle, history), history.incident)
    if not history.snapshots:
        return _without_timeline(bundle, history, witness, changes, config_file, caveats)
    guard, job = StageGuard(), _job(history)
    played = _Played(config, history.snapshots[0].at_ns)
    for moment in play(config, history.snapshots, witness, job=job, guard=guard):
        played.add(moment, job)
    caveats += [f"{one.name} failed {one.errors_total} times: its findings are missing" for one in guard.errors()]
    since_ns = _stood_since(history, played)
    timeline = _timeline(history, since_ns)
    caveats += _of_history(timeline, played)
    return Replay(
        SCHEMA_VERSION,
        __version__,
        str(bundle),
        job.training_job if job else None,
        job.owner if job else None,
        history.snapshots[-1].node,
        _source(history, config_file),
        changes,
        timeline,
        tuple(played.decisions),
        _looks(history, witness),
        tuple(played.told),
        tuple(incident_document(incident) for incident in played.incidents),
        _at_the_time(history.incident),
        tuple(dict.fromkeys([*caveats, *witness.caveats])),
    )


class _Played:
    """What the moments of a replay come to."""

    def __init__(self, config: Config, begins_ns: int) -> None:
        self._begins_ns = begins_ns
        self._telling = SaidByVoices(voices(config))
        self._found: tuple[Any, ...] = ()
        self._ticks = -1
        self.decisions: list[Decision] = []
        self.told: list[ToldMessage] = []
        self.incidents: tuple[Incident, ...] = ()

    def add(self, moment: PlayedMoment, job: JobKey | None) -> None:
        if moment.snapshot is not None:
            self._ticks += 1
            self._decided(moment, job)
        for message in self._telling.step(moment.incidents):
            incident = message.incident
            told = (incident.incident_id, message.step, incident.severity, message.outputs, message.line)
            self.told.append(ToldMessage(iso(moment.wall_ns), self._after(moment.at_ns), *told))
        self.incidents = moment.incidents

    def _decided(self, moment: PlayedMoment, job: JobKey | None) -> None:
        findings = _of_job(moment.detected, job)
        found = tuple((one.detector, one.stage, one.ranks, one.since_ns) for one in findings)
        if found != self._found:
            self._found = found
            self.decisions.append(Decision(iso(moment.wall_ns), self._after(moment.at_ns), self._ticks, findings))

    def _after(self, at_ns: int) -> float:
        return round((at_ns - self._begins_ns) / SECOND_NS, 3)


def _without_timeline(
    bundle: Path,
    history: History,
    witness: RecordedWitness,
    changes: tuple[ChangedKey, ...],
    config_file: Path | None,
    caveats: list[str],
) -> Replay:
    """Nothing of detection and telling; its looks can be judged all the same."""
    numbers = [one.number for one in recorded_looks(bundle, history)]
    if not numbers:
        raise UnusableInput(
            f"{bundle}: it holds no timeline.jsonl and no evidence of ranks, so that there is nothing to replay",
            "Give a folder that a daemon wrote (`stallwatch incidents` lists them); `stallwatch analyze` reads dumps "
            "and logs.",
        )
    for number in numbers:
        witness.judge(number)
    said, job = history.description, _job(history)
    caveats.append(
        "the bundle holds no timeline (timeline.jsonl), so that nothing is known of the time before the incident: what "
        "detection would have decided and who would have been told cannot be replayed. Its looks are judged anew."
    )
    return Replay(
        SCHEMA_VERSION,
        __version__,
        str(bundle),
        job.training_job if job else said.training_job,
        job.owner if job else said.owner,
        next(iter(said.nodes), None),
        _source(history, config_file),
        changes,
        None,
        (),
        _looks(history, witness),
        (),
        (),
        _at_the_time(history.incident),
        tuple(caveats),
    )


def _configuration(history: History, config_file: Path | None) -> tuple[Config, tuple[ChangedKey, ...], list[str]]:
    caveats, recorded = list(history.caveats), history.configuration
    try:
        before, _ = configuration.load(base=recorded)
    except UsageError as error:
        caveats.append(f"config.json: not usable by this version, defaults take its place ({error})")
        recorded, before = None, Config()
    unknown = configuration.unknown_keys(recorded or {})
    if unknown:
        caveats.append(f"config.json: this version has no {', '.join(unknown)}")
    if history.configuration is None:
        caveats.append("the bundle holds no configuration (config.json): the defaults are used")
    if config_file is None:
        return before, (), caveats
    config, _ = configuration.load(config_file, base=recorded, strict=True)
    return (
        config,
        tuple(ChangedKey(key, _value(before, key), _value(config, key)) for key in changed(before, config)),
        caveats,
    )


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(configuration.without_secrets(config), section), name)


def _source(history: History, config_file: Path | None) -> str:
    recorded = "the defaults" if history.configuration is None else "as recorded"
    return f"{recorded}, and {config_file}" if config_file is not None else recorded


def _job(history: History) -> JobKey | None:
    """Whose bundle it is: timelines show all jobs of the node."""
    if history.incident is not None:
        return history.incident.job
    said = history.description
    if said.training_job is None or said.epoch is None:
        return None
    return JobKey(said.training_job, said.epoch, said.owner or "")


def _of_job(detected: Detected, job: JobKey | None) -> tuple[Finding, ...]:
    return tuple(finding for finding in detected.findings if job is None or finding.job == job)


def _stood_since(history: History, played: _Played) -> int | None:
    """CLOCK_MONOTONIC, by whoever saw more of it."""
    then = [history.incident.since_ns] if history.incident is not None else []
    return min([*then, *(incident.since_ns for incident in played.incidents)], default=None)


def _timeline(history: History, since_ns: int | None) -> Timeline:
    first, last = history.snapshots[0], history.snapshots[-1]
    before = None if since_ns is None else round((since_ns - first.at_ns) / SECOND_NS, 3)
    return Timeline(iso(first.wall_ns), iso(last.wall_ns), len(history.snapshots), before)


def _of_history(timeline: Timeline, played: _Played) -> Iterable[str]:
    if timeline.history_seconds is not None and timeline.history_seconds <= 0:
        yield (
            f"the timeline begins {-timeline.history_seconds:.0f} s after the incident had begun and holds nothing of "
            "the time before: limits that were learned then are not known, and detection may come later than it did"
        )
    if any(not incident.is_over for incident in played.incidents):
        yield f"the timeline ends at {timeline.ends_at}: what comes later is not known here"


def _looks(history: History, witness: RecordedWitness) -> tuple[LookVerdict, ...]:
    begun: dict[int, int] = {}
    for attempt in history.attempts:
        if attempt.asked_at_ns is not None:
            begun[attempt.look] = min(attempt.asked_at_ns, begun.get(attempt.look, attempt.asked_at_ns))
    clock = history.snapshots[0] if history.snapshots else None
    return tuple(
        LookVerdict(
            one.look,
            iso(clock.wall_ns + begun[one.look] - clock.at_ns) if clock and one.look in begun else None,
            one.report.verdicts[0] if one.report and one.report.verdicts else None,
            one.problem,
        )
        for one in witness.judged_looks
    )


def _at_the_time(incident: Incident | None) -> tuple[EventDocument, ...]:
    about_telling = ("told as", "escalated", UNTOLD, "verdict", "resolved", "ended", "acknowledged")
    events = incident.events if incident is not None else ()
    return tuple(
        EventDocument(iso(event.wall_ns), event.what) for event in events if event.what.startswith(about_telling)
    )
