"""An incident of the daemon in a terminal: its report, and its life around it."""

import re
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from stallwatch.cli.report_view import report_parts
from stallwatch.cli.terminal import SEVERITY_STYLES, indented, local_time, safe, severity_word, time_and_distance
from stallwatch.outputs.documents import IncidentDocument

_LOOK_DONE = re.compile(r"look \d+ done")
# How the history says that nobody is told (incidents.silence), and the word for it where there is room for one.
_QUIET = re.compile(r"the mode is (?P<mode>\w+)|is in (?P<maintenance>maintenance)|(?P<muted>the job is muted)")
_VERDICT = re.compile(r"verdict: \w+ \(\w+\): (?P<sentence>.+)", re.DOTALL)


def incident_view(incident: IncidentDocument) -> RenderableType:
    """An incident as a person reads it."""
    return Group(*_parts(incident))


def _parts(incident: IncidentDocument) -> Iterator[RenderableType]:
    yield _head(incident)
    if not incident.verdicts:
        yield Text("No verdict yet.")
        yield from (indented(finding.reason) for finding in incident.findings)
    yield from report_parts(incident, over=incident.is_over)
    yield Text("\nhistory", style="bold")
    for at, what in history(incident):
        yield indented(f"{local_time(at)}  {what}")
    if incident.resolved_at and not any(event.what.startswith(f"{incident.state}:") for event in incident.events):
        yield indented(f"{local_time(incident.resolved_at)}  {incident.state}: {incident.resolution}")
    if incident.bundle:
        yield Text(safe(f"\n{incident.bundle}"), style="dim")


def history(incident: IncidentDocument) -> Iterator[tuple[str, str]]:
    """When and what: a sentence that stands above, or was said before, is not said again."""
    said = [verdict.summary for verdict in incident.verdicts[:1]]
    for event in incident.events:
        what = event.what
        if _LOOK_DONE.fullmatch(what):
            continue  # what it brought is told by itself
        for sentence in said:
            what = what.replace(f": {sentence}", ", as above").replace(sentence, "as above")
        if match := _VERDICT.fullmatch(what):
            said.append(match["sentence"])
        yield event.at, what


def marks(incident: IncidentDocument) -> Iterator[str]:
    """Who is on it, and why nobody is told, in a few words."""
    if incident.acknowledged_by and incident.is_over:
        yield f"acknowledged by {incident.acknowledged_by}"
    elif incident.acknowledged_by:
        yield f"{incident.acknowledged_by} is on it"
    if incident.muted:
        yield next((word for event in reversed(incident.events) if (word := _quiet(event.what))), "muted")


def _quiet(what: str) -> str:
    found = None if _VERDICT.fullmatch(what) else _QUIET.search(what)
    if found is None:
        return ""
    return f"mode {found['mode']}" if found["mode"] else found["maintenance"] or "muted"


def _of(owner: str) -> str:
    return f" of {owner}" if owner else ""


def _head(incident: IncidentDocument) -> Text:
    head = Text()
    head.append(safe(incident.incident_id), style="bold")
    head.append(f"  {incident.state}  ")
    head.append(severity_word(incident.severity), style=SEVERITY_STYLES[incident.severity])
    withheld = f" (would be told as {incident.withheld})" if incident.withheld != "none" else ""
    head.append(safe(f"  {', '.join(marks(incident))}{withheld}") if incident.muted or incident.acknowledged_by else "")
    head.append(
        f"  told at {time_and_distance(incident.tell_at)} unless it moves" if incident.tell_at else "", style="dim"
    )
    together = incident.together
    if together is not None:
        nodes = f"{together.nodes} nodes see" if together.nodes > 1 else "1 node sees"
        seen = f"  by what {nodes}" if together.nodes else ""
        head.append(safe(f"{seen}  {'this node tells of it' if together.speaks else together.why}"), style="dim")
    head.append(safe(f"  job {incident.training_job}{_of(incident.owner)} on {incident.node}"), style="dim")
    return head
