"""Options of the commands that ask a running daemon, and how they print."""

import functools
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from stallwatch import config
from stallwatch.encoding import json_of
from stallwatch.errors import UsageError
from stallwatch.outputs.client import Client
from stallwatch.outputs.documents import IncidentDocument
from stallwatch.outputs.sockets import SOCKET_NAME

_MOST_PAST = 1000
_MOST_NAMED = 8


def asks_daemon(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--config`, `--socket` and `--json`, and a client as its first argument."""

    @click.option("--config", "config_file", type=click.Path(dir_okay=False), help="The daemon's configuration file.")
    @click.option(
        "--socket", "socket_path", type=click.Path(), help="The daemon's control socket, if not the configured one."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(function)
    def with_client(config_file: str | None, socket_path: str | None, as_json: bool, **arguments: Any) -> Any:
        return function(Client(socket_path or control_socket(config_file)), as_json=as_json, **arguments)

    return with_client


def speaks_for() -> str:
    """Whom root acts for, by sudo; of everybody else the daemon's socket knows who it is."""
    return os.environ.get("SUDO_USER", "") if os.geteuid() == 0 else ""


def find_incident(client: Client, asked: str | None) -> str:
    """Given an id, the beginning of one, a job's name, or nothing for the only open one, return the id. Raise
    UsageError where that is none, or several."""
    known = client.incidents(past=_MOST_PAST).incidents  # newest first
    standing = [one for one in known if not one.is_over]
    if asked is None:
        found = standing
        if len(found) != 1:
            if not found:
                raise UsageError("no incident is open", "`stallwatch incidents` lists past ones.")
            raise UsageError(f"{len(found)} incidents are open; say which", f"Open: {_ids(found)}.")
    elif not asked or any(one.incident_id == asked for one in known):
        return asked
    elif found := [one for one in known if one.training_job == asked]:
        found = [one for one in found if not one.is_over] or found[:1]  # the last, where none is open
    else:
        found = [one for one in known if one.incident_id.startswith(asked)]
        if not found:
            return asked  # the daemon's store may go further back; it says if it has none
    if len(found) > 1:
        raise UsageError(f"{asked!r} is the beginning, or the job, of several incidents", f"Say one of {_ids(found)}.")
    return found[0].incident_id


def _ids(incidents: Sequence[IncidentDocument]) -> str:
    return ", ".join(one.incident_id for one in incidents[:_MOST_NAMED]) + (
        ", …" if len(incidents) > _MOST_NAMED else ""
    )


def echo_json(value: object) -> None:
    """Indented for the person who looks at it; one document, whatever reads it."""
    click.echo(msgspec.json.format(json_of(value), indent=2).decode())


def control_socket(config_file: str | None) -> Path:
    """The daemon's socket: where nobody says another, of the daemon that this user has started, else of the node's."""
    environment = config.current_environment()
    settings, _ = config.load(config_file, environment)
    configured = Path(settings.daemon.run_directory) / SOCKET_NAME
    own = config.own_defaults(environment).get("daemon", {}).get("run_directory")
    of_node = Path(config.Config().daemon.run_directory) / SOCKET_NAME
    if own == settings.daemon.run_directory and not _answers(configured) and of_node.exists():
        return of_node
    return configured


def _answers(path: Path) -> bool:
    """Whether a daemon listens there; one that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True
