"""The API's documents (contract): an incident is a Report of `analyze --json` plus the life of the incident."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from stallwatch import __version__
from stallwatch.clock import iso
from stallwatch.encoding import json_of
from stallwatch.incidents.sampled import report_of_incident
from stallwatch.model.finding import Finding, RankState
from stallwatch.model.incident import (
    OVER,
    Incident,
    IncidentState,
    Judgement,
    NodeReport,
    Severity,
    Telling,
    Together,
)
from stallwatch.model.snapshot import SensorStatus
from stallwatch.model.verdict import SCHEMA_VERSION, Report


class EventDocument(msgspec.Struct, frozen=True):
    """An event of an incident as the API shows it."""

    at: str
    what: str


class IncidentDocument(Report, frozen=True, kw_only=True):
    """An incident as the API shows it."""

    incident_id: str
    training_job: str
    epoch: str
    # The life of the incident.
    state: IncidentState
    severity: Severity
    muted: bool
    node: str
    opened_at: str
    resolved_at: str | None
    resolution: str
    bundle: str
    findings: tuple[Finding, ...]
    events: tuple[EventDocument, ...]
    acknowledged_by: str = ""
    judged: Judgement | Literal[""] = ""  # whether its verdict was right, by somebody who knows
    owner: str = ""  # the user whose job it is, as the node knows him

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in OVER

    tell_at: str | None = None  # when somebody is told, unless it moves
    tell_reason: str = ""  # why not sooner
    # How this node stands among those of the job; null: it sees all of it, or is alone.
    together: Together | None = None
    withheld: Severity = "none"  # what people would have been told, had a silence not kept it back


class IncidentList(msgspec.Struct, frozen=True):
    """The incidents of a node as the API shows them."""

    schema_version: int
    node: str
    incidents: tuple[IncidentDocument, ...]  # newest first; without `stacks`: ask for one incident to have them
    problem: str = ""  # why past ones may be missing


class RankDocument(msgspec.Struct, frozen=True):
    """What a RankView says, by the same names."""

    training_job: str
    epoch: str
    rank: int
    local_rank: int
    world_size: int
    pid: int
    state: RankState
    step: int | None
    step_seconds: float | None
    beat_age_seconds: float | None
    pulse_age_seconds: float | None
    phase: str
    limit_seconds: float | None
    limit_reason: str
    gpu_uuid: str | None
    owner: str = ""
    ended: str = ""


class HeldMessages(msgspec.Struct, frozen=True):
    """Messages of one user that wait for room in his budget."""

    output: str
    owner: str
    messages: int
    reason: str
    until: str  # when the next may go


class RankList(msgspec.Struct, frozen=True):
    """The ranks of a node as the API shows them."""

    schema_version: int
    tool_version: str
    node: str
    at: str
    tick: int
    ranks: tuple[RankDocument, ...]
    sensors: tuple[SensorStatus, ...]
    problems: tuple[str, ...] = ()  # outputs that do not deliver
    held: tuple[HeldMessages, ...] = ()
    telling: Telling = Telling()


class Problem(msgspec.Struct, frozen=True):
    """A part of the daemon that does not work, and why."""

    part: Literal["loop", "sensor", "output"]
    name: str
    reason: str
    required: bool


class Readiness(msgspec.Struct, frozen=True):
    """Whether every part that must work does."""

    ready: bool
    problems: tuple[Problem, ...]
    meeting_place: str = ""  # how it does where nodes meet, well or not; "": they do not


def incident_document(incident: Incident, *, with_stacks: bool = True) -> IncidentDocument:
    """An incident as the API shows it; `with_stacks`: with the merged tree."""
    report = incident.report or report_of_incident(incident)
    said = {name: getattr(report, name) for name in Report.__struct_fields__}
    said |= {
        "incident_id": incident.incident_id,
        "training_job": incident.job.training_job,
        "epoch": incident.job.epoch,
        "stacks": report.stacks if with_stacks else None,
    }
    return IncidentDocument(
        **said,
        state=incident.state,
        severity=incident.severity,
        muted=incident.muted,
        withheld=incident.withheld,
        node=incident.node,
        opened_at=iso(incident.opened_wall_ns),
        resolved_at=iso(incident.resolved_wall_ns) if incident.resolved_wall_ns is not None else None,
        resolution=incident.resolution,
        bundle=incident.bundle,
        findings=incident.findings,
        events=tuple(EventDocument(iso(event.wall_ns), event.what) for event in incident.events),
        acknowledged_by=incident.acknowledged_by,
        judged=incident.judged,
        owner=incident.job.owner,
        tell_at=iso(incident.tell_wall_ns) if incident.tell_wall_ns is not None else None,
        tell_reason=incident.tell_reason,
        together=incident.together,
    )


def incident_list(report: NodeReport, past: Iterable[Incident] = ()) -> IncidentList:
    """Incidents of the report, then those of the store that it no longer holds."""
    present = {incident.incident_id for incident in report.incidents}
    every = (*report.incidents, *(incident for incident in past if incident.incident_id not in present))
    documents = tuple(incident_document(incident, with_stacks=False) for incident in every)
    return IncidentList(SCHEMA_VERSION, report.snapshot.node, documents)


def rank_list(report: NodeReport, problems: tuple[str, ...] = (), held: tuple[HeldMessages, ...] = ()) -> RankList:
    """The ranks of a report as the API shows them."""
    snapshot = report.snapshot
    return RankList(
        SCHEMA_VERSION,
        __version__,
        snapshot.node,
        iso(snapshot.wall_ns),
        snapshot.tick,
        tuple(RankDocument(*(getattr(view, name) for name in RankDocument.__struct_fields__)) for view in report.ranks),
        snapshot.sensors,
        problems,
        held,
        report.telling,
    )


def readiness(report: NodeReport, output_problems: Iterable[tuple[str, str]]) -> Readiness:
    """What does not answer, with reasons. Only a required sensor makes a node unready; a dead Slack does not."""
    problems = [
        Problem("sensor", sensor.sensor, sensor.reason, sensor.required)
        for sensor in report.snapshot.sensors
        if not sensor.up
    ]
    problems += [Problem("output", name, reason, required=False) for name, reason in output_problems]
    place = next((sensor.reason for sensor in report.snapshot.sensors if sensor.sensor == "meeting_place"), "")
    return Readiness(not any(problem.required for problem in problems), tuple(problems), place)


def encoded(document: object) -> bytes:
    """JSON of a document. A text that no UTF-8 can hold costs its own characters and nothing else."""
    try:
        return json_of(document)
    except UnicodeEncodeError:
        return json_of(_holdable(msgspec.to_builtins(document)))


def _holdable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_holdable(key): _holdable(one) for key, one in value.items()}
    return [_holdable(one) for one in value] if isinstance(value, list | tuple) else value
