"""A replay as a person reads it: what was replayed, what was decided when, who would have been told, and what is not
known."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from stallwatch.cli.terminal import SEVERITY_STYLES, indented, local_time, safe, seconds, severity_word
from stallwatch.model.finding import Finding
from stallwatch.model.verdict import Verdict
from stallwatch.outputs.documents import IncidentDocument
from stallwatch.replay.document import Decision, LookVerdict, Replay, ToldMessage


def replay_parts(replay: Replay) -> Iterator[RenderableType]:
    """A replay as a person reads it, part by part."""
    yield Text(safe(_what(replay)), style="bold")
    yield indented(_from_where(replay))
    for change in replay.changed:
        yield indented(f"{change.key}: {change.recorded} then, {change.replayed} here")
    yield from _section("detection", map(_decision, replay.detection))
    yield from _section("looks, judged anew", map(_look, replay.looks))
    if replay.timeline is not None:
        told = [_told(one) for one in replay.told]
        yield from _section("who would have been told", told or [indented("nobody")])
        yield from _section("when the recording ends", map(_end, replay.incidents))
    at_the_time = (indented(f"{local_time(one.at)}  {one.what}") for one in replay.at_the_time)
    yield from _section("what the daemon noted then", at_the_time)
    yield from _section("caveats", map(indented, replay.caveats))


def _what(replay: Replay) -> str:
    whose = f" of {replay.owner}" if replay.owner else ""
    job = f"job {replay.training_job}{whose}" if replay.training_job else "an incident"
    return f"Replay of {job}" + (f" on {replay.node}" if replay.node else "")


def _from_where(replay: Replay) -> str:
    used = f"configuration: {replay.configuration}"
    if replay.timeline is None:
        return used
    timeline = replay.timeline
    snapshots = f"{timeline.snapshots} snapshots" if timeline.snapshots > 1 else "1 snapshot"
    span = f"{snapshots}, {local_time(timeline.begins_at)} to {local_time(timeline.ends_at)}"
    if timeline.history_seconds is not None and timeline.history_seconds > 0:
        span += f", from {seconds(timeline.history_seconds)} before the incident"
    return f"{span}; {used}"


def _decision(decision: Decision) -> RenderableType:
    said = "; ".join(map(_finding, decision.findings)) or "nothing (any more)"
    return indented(f"{_when(decision.at, decision.after_seconds)}  {said}")


def _finding(finding: Finding) -> str:
    return f"{finding.detector} {finding.stage}: {finding.reason}"


def _look(look: LookVerdict) -> RenderableType:
    when = f" at {local_time(look.at)}" if look.at else ""
    return indented(f"look {look.look}{when}  {_verdict(look.verdict) if look.verdict else look.problem}")


def _verdict(verdict: Verdict) -> str:
    return f"{verdict.cause} ({verdict.confidence}): {verdict.summary}"


def _told(told: ToldMessage) -> RenderableType:
    step = told.step if told.step != "told" else f"told as {told.severity}"
    line = Text(safe(f"{_when(told.at, told.after_seconds)}  "))
    line.append(step, style=SEVERITY_STYLES[told.severity])
    line.append(safe(f" by {', '.join(told.outputs)}: {told.line.partition(' | ')[2] or told.line}"))
    return Padding(line, (0, 0, 0, 2))


def _end(incident: IncidentDocument) -> RenderableType:
    words = [incident.state, severity_word(incident.severity)]
    words += [incident.resolution] if incident.resolution else []
    words += [f"told at {local_time(incident.tell_at)} unless it moves"] if incident.tell_at else []
    words += [incident.tell_reason] if incident.tell_reason else []
    words += [f"{incident.verdicts[0].cause}, {incident.verdicts[0].confidence}"] if incident.verdicts else []
    return indented(f"{incident.incident_id}  {'; '.join(words)}")


def _when(at: str, after_seconds: float) -> str:
    return f"{local_time(at)}  {after_seconds:+7.1f} s"


def _section(title: str, lines: Iterable[RenderableType]) -> Iterator[RenderableType]:
    body = list(lines)
    if body:
        yield Text(f"\n{title}", style="bold")
        yield from body
