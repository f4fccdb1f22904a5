"""`stallwatch notify-test`: does an alert arrive?"""

import click

from stallwatch.cli.daemon_access import asks_daemon, echo_json
from stallwatch.errors import EXIT_OK
from stallwatch.outputs.client import EXIT_UNAVAILABLE, Client


@click.command()
@asks_daemon
def command(client: Client, as_json: bool) -> int:
    """Send a test message through every notifying output. Exit code: 0 when all arrived, 69 when one did not."""
    lines = client.notify_test()
    if as_json:
        echo_json({"lines": lines})
    else:
        for line in lines:
            click.echo(line)
    arrived = all(line.partition(": ")[2].startswith("delivered") for line in lines)
    return EXIT_OK if arrived else EXIT_UNAVAILABLE
