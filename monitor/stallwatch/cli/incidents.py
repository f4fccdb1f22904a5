"""`stallwatch incidents [ID]`: what happened on this node, or one incident in full."""

import click
from rich.console import RenderableType
from rich.text import Text

from stallwatch.cli.daemon_access import asks_daemon, echo_json
from stallwatch.cli.incident_view import incident_view
from stallwatch.cli.terminal import SEVERITY_STYLES, local_time, safe, severity_word, show, table
from stallwatch.outputs.client import Client
from stallwatch.outputs.documents import IncidentList


@click.command()
@click.argument("incident_id", required=False, metavar="[ID]")
@click.option("--limit", type=click.IntRange(0, 1000), default=50, show_default=True, help="Past ones to show.")
@asks_daemon
def command(client: Client, as_json: bool, incident_id: str | None, limit: int) -> None:
    """List open and past incidents, newest first; with an ID, show its verdict, code line, stacks and history."""
    if incident_id is not None:
        incident = client.incident(incident_id)
        if as_json:
            echo_json(incident)
        else:
            show(incident_view(incident))
        return
    incidents = client.incidents(past=limit)
    if as_json:
        echo_json(incidents)
    else:
        show(list_view(incidents))


def list_view(incidents: IncidentList) -> RenderableType:
    if not incidents.incidents:
        return Text(safe(f"No incident on {incidents.node}."))
    grid = table("incident", "state", "severity", "opened", "what")
    for incident in incidents.incidents:
        if incident.verdicts:
            what = f"{incident.verdicts[0].cause}: {incident.verdicts[0].summary}"
        else:
            what = "; ".join(finding.reason for finding in incident.findings) or "no verdict yet"
        grid.add_row(
            Text(safe(incident.incident_id)),
            incident.state,
            Text(severity_word(incident.severity), style=SEVERITY_STYLES[incident.severity]),
            local_time(incident.opened_at),
            Text(safe(what)),
        )
    return grid
