"""`stallwatch capture`: evidence now, on demand."""

import click

from stallwatch.cli.daemon_access import asks_daemon, echo_json
from stallwatch.outputs.client import Client


@click.command()
@click.option("--job", help="The training job; may be left out when the node runs only one.")
@click.option("--owner", metavar="USER", help="Whose job, where several users have one of that name.")
@asks_daemon
def command(client: Client, as_json: bool, job: str | None, owner: str | None) -> None:
    """Take stacks and recorders of a job's ranks on this node, and judge them, whether or not it looks stuck."""
    incident_id = client.capture(job, owner)
    if as_json:
        echo_json({"incident_id": incident_id})
    else:
        click.echo(f"Capturing as {incident_id}; in some seconds: stallwatch incidents {incident_id}")
