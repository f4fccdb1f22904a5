"""`stallwatch mode`: whether people are told of what is found, on all nodes that meet."""

from typing import cast

import click

from stallwatch.cli.daemon_access import asks_daemon, echo_json, speaks_for
from stallwatch.cli.mute import Duration
from stallwatch.cli.terminal import lasting, safe
from stallwatch.model.incident import Mode
from stallwatch.outputs.client import Client


@click.command()
@click.argument("mode", required=False, type=click.Choice(["tell", "shadow", "off"]))
@click.option("--for", "duration", type=Duration(), default="30d", show_default=True, help="0: as configured again.")
@asks_daemon
def command(client: Client, as_json: bool, mode: str | None, duration: float) -> None:
    """Set whether people are told, for a time, on this node and all that it meets; without MODE, show what holds.

    tell: they are. shadow: all is watched and judged, nobody is told, and `stallwatch incidents` shows what would have
    been told. off: no rank is looked at, and nobody is told.
    """
    if mode is None:
        telling = client.ranks().telling
        if as_json:
            echo_json(telling)
        else:
            click.echo(safe("\n".join(telling.silences) or f"mode {telling.mode}: nothing is silenced"))
        return
    where = client.mode(cast("Mode", mode), duration, speaks_for())
    if as_json:
        echo_json({"mode": mode, "seconds": duration, "where": where})
    else:
        what = f"mode {mode} for {lasting(duration)}" if duration else "the mode is again as configured (fleet.mode)"
        click.echo(safe(f"{what}, {where}."))
