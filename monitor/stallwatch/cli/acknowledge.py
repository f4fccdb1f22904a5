"""`stallwatch acknowledge`: say that somebody is on an incident."""

import click

from stallwatch.cli.daemon_access import asks_daemon, echo_json, speaks_for
from stallwatch.cli.terminal import safe
from stallwatch.errors import UsageError
from stallwatch.outputs.client import Client


@click.command()
@click.argument("incident_id", required=False, metavar="[ID]")
@click.option("--by", "name", help="Who is on it; only root may say another than himself.", show_default="you")
@asks_daemon
def command(client: Client, as_json: bool, incident_id: str | None, name: str | None) -> None:
    """Say that you are on incident ID (without one: on the only open one). It is shown, and nobody is paged again."""
    chosen = incident_id or _only_open(client)
    by = client.acknowledge(chosen, name or speaks_for())
    if as_json:
        echo_json({"incident_id": chosen, "by": by})
    else:
        click.echo(safe(f"{chosen}: acknowledged by {by}. It is told again only if the verdict changes or it ends."))


def _only_open(client: Client) -> str:
    open_now = [one.incident_id for one in client.incidents().incidents if not one.is_over]
    if len(open_now) != 1:
        there = f"Open: {', '.join(open_now)}." if open_now else "`stallwatch incidents` lists past ones."
        raise UsageError(f"{len(open_now) or 'no'} incidents are open; say which", there)
    return open_now[0]
