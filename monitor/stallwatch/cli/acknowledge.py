"""`stallwatch acknowledge`: say that somebody is on an incident."""

import click

from stallwatch.cli.daemon_access import asks_daemon, echo_json, find_incident, speaks_for
from stallwatch.cli.terminal import safe
from stallwatch.outputs.client import Client


@click.command()
@click.argument("incident_id", required=False, metavar="[ID]")
@click.option("--by", "name", help="Who is on it; only root may say another than himself.", show_default="you")
@asks_daemon
def command(client: Client, as_json: bool, incident_id: str | None, name: str | None) -> None:
    """Say that you are on incident ID, or the beginning of one, or its job (without: on the only open one).

    It is shown everywhere, and nobody is paged again.
    """
    chosen = find_incident(client, incident_id)
    by = client.acknowledge(chosen, name or speaks_for())
    if as_json:
        echo_json({"incident_id": chosen, "by": by})
    else:
        click.echo(safe(f"{chosen}: acknowledged by {by}. It is told again only if the verdict changes or it ends."))
