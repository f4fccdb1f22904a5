"""Options of the commands that ask a running daemon, and how they print."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from stallwatch import config
from stallwatch.outputs.client import Client
from stallwatch.outputs.sockets import SOCKET_NAME


def asks_daemon(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--config`, `--socket` and `--json`, and a client as its first argument."""

    @click.option("--config", "config_file", type=click.Path(dir_okay=False), help="The daemon's configuration file.")
    @click.option("--socket", type=click.Path(), help="The daemon's control socket, if not the configured one.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(function)
    def with_client(config_file: str | None, socket: str | None, as_json: bool, **arguments: Any) -> Any:
        return function(Client(socket or _configured(config_file)), as_json=as_json, **arguments)

    return with_client


def speaks_for() -> str:
    """Whom root acts for, by sudo; of everybody else the daemon's socket knows who it is."""
    return os.environ.get("SUDO_USER", "") if os.geteuid() == 0 else ""


def echo_json(value: object) -> None:
    """Indented for the person who looks at it; one document, whatever reads it."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _configured(config_file: str | None) -> Path:
    settings, _ = config.load(config_file, config.current_environment())
    return Path(settings.daemon.run_directory) / SOCKET_NAME
