"""`stallwatch incidents [ID]`: what happened on this node, or one incident in full."""

from collections.abc import Iterator

import click
import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from stallwatch.cli.daemon_access import asks_daemon, echo_json, find_incident, speaks_for
from stallwatch.cli.incident_view import incident_view, marks
from stallwatch.cli.numbers import WholeNumber
from stallwatch.cli.terminal import SEVERITY_STYLES, console, local_time, safe, severity_word, show, table
from stallwatch.errors import UsageError
from stallwatch.model.incident import Judgement
from stallwatch.outputs.client import Client
from stallwatch.outputs.documents import IncidentDocument, IncidentList


@click.command()
@click.argument("words", nargs=-1, metavar="[ID] | judge ID right|wrong")
@click.option("--limit", type=WholeNumber(0, 1000), default=50, show_default=True, help="Past ones to show.")
@asks_daemon
def command(client: Client, as_json: bool, words: tuple[str, ...], limit: int) -> None:
    """List open and past incidents, newest first; with an ID, show its verdict, code line, stacks and history.

    ID is an incident's, the beginning of one, or a job's name: then its open incident, else its last.

    `judge ID right` or `wrong` notes whether its verdict was: a dashboard shows the share of a month.
    """
    if words[:1] == ("judge",):
        _judge(client, words[1:])
        return
    if len(words) > 1:
        raise UsageError(
            f"{' '.join(words)!r} is not one incident", "`stallwatch incidents ID`, or judge ID right|wrong."
        )
    incident_id = words[0] if words else None
    if incident_id is not None:
        incident = client.incident(find_incident(client, incident_id))
        if as_json:
            echo_json(incident)
        else:
            show(incident_view(incident))
        return
    incidents = client.incidents(past=limit)
    if as_json:
        echo_json(incidents)
    else:
        standing = [one for one in incidents.incidents if not one.is_over]
        if len(standing) == 1 and console().is_terminal:  # who looks, looks for that one
            past = msgspec.structs.replace(
                incidents, incidents=tuple(one for one in incidents.incidents if one not in standing)
            )
            show(incident_view(client.incident(standing[0].incident_id)))
            if past.incidents:
                show(Group(Text("\nbefore", style="bold"), list_view(past)))
        else:
            show(list_view(incidents))
    if incidents.problem:
        click.echo(f"stallwatch: {safe(incidents.problem)}", err=True)


def _judge(client: Client, words: tuple[str, ...]) -> None:
    if len(words) != 2 or words[1] not in ("right", "wrong"):
        raise UsageError("judge takes an incident and right or wrong", "stallwatch incidents judge ID right")
    incident_id = find_incident(client, words[0])
    judgement: Judgement = "right" if words[1] == "right" else "wrong"
    by = client.judge(incident_id, judgement, speaks_for())
    click.echo(safe(f"The verdict of {incident_id} was {judgement}, says {by}."))


def list_view(incidents: IncidentList) -> RenderableType:
    """In a terminal a line of facts and the sentence below it, whatever the width; in a pipe a line each."""
    if not incidents.incidents:
        return Text(safe(f"No {'open ' if incidents.problem else ''}incident on {incidents.node}."))
    if console().is_terminal:
        return Group(*(part for incident in incidents.incidents for part in _block(incident)))
    grid = table("incident", "state", "severity", "opened", "what")
    for incident in incidents.incidents:
        grid.add_row(
            Text(safe(incident.incident_id)),
            Text(safe(", ".join((incident.state, *marks(incident))))),
            _severity(incident),
            local_time(incident.opened_at),
            Text(safe(_what(incident))),
        )
    return grid


def _block(incident: IncidentDocument) -> Iterator[RenderableType]:
    head = Text(safe(incident.incident_id), style="bold")
    head.append("  ")
    if incident.is_over:
        head.append(incident.state, style="green" if incident.state == "resolved" else "not bold")
    else:
        head.append(_severity(incident), style=SEVERITY_STYLES[incident.severity])
        head.append(f"  {incident.state}", style="not bold")
    head.append(safe("".join(f"  {mark}" for mark in marks(incident))), style="not bold")
    head.append(f"  {local_time(incident.opened_at)}", style="not bold dim")
    yield head
    yield Padding(Text(safe(_what(incident))), (0, 0, 0, 2))


def _severity(incident: IncidentDocument) -> str:
    """What people were told, or would have been."""
    return f"({incident.withheld})" if incident.withheld != "none" else severity_word(incident.severity)


def _what(incident: IncidentDocument) -> str:
    if incident.verdicts:
        return f"{incident.verdicts[0].cause}: {incident.verdicts[0].summary}"
    return "; ".join(finding.reason for finding in incident.findings) or "no verdict yet"
