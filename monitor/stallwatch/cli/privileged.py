"""`stallwatch privileged`: the side of the daemon that may read other users' processes, as a unit of its own."""

import json
import logging
import os
import sys
from pathlib import Path

import click

from stallwatch import config as configuration
from stallwatch.errors import UsageError
from stallwatch.loop.privileged import make_rank_directory, printing, settings_of
from stallwatch.node.memory_file import memory_file
from stallwatch.node.privileged_client import COMMAND


@click.command()
@click.option(
    "--config",
    "path",
    type=click.Path(readable=False, path_type=Path),
    help="The daemon's TOML file: which directories hold records, which py-spy is run.",
)
@click.option("--socket", "listen", help="Where to listen; the service manager's own socket comes first.")
@click.option("--user", default="", help="The daemon's user, who may ask; root may too.")
@click.option("--print", "only_print", is_flag=True, help="Print what it would go by, as JSON.")
def command(path: Path | None, listen: str | None, user: str, only_print: bool) -> None:
    """Serve the daemon what needs capabilities: verbs, no program, path or user (see stallwatch-privileged.service)."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s")
    config, _ = configuration.load(path, configuration.current_environment())
    settings = json.dumps(settings_of(config, printing(path)))
    if only_print:
        click.echo(settings)
        return
    listen = listen or config.daemon.privileged_socket
    if not listen and os.environ.get("LISTEN_PID") != str(os.getpid()):
        raise UsageError("no socket to listen at", "Give --socket, or set daemon.privileged_socket.")
    make_rank_directory(config.daemon.rank_directory)
    # The server needs none of what was imported for this: it takes the process over, and with it the manager's socket.
    file = memory_file(settings.encode())
    os.dup2(file.fileno(), sys.stdin.fileno())
    os.execv(  # noqa: S606  our own program
        COMMAND[0], [*COMMAND, "--listen", listen or "", *(("--user", user) if user else ())]
    )
