"""`stallwatch mute`: silence a job for a time."""

import re
from collections.abc import Sequence

import click

from stallwatch.cli.daemon_access import asks_daemon, echo_json, speaks_for
from stallwatch.cli.terminal import lasting, safe
from stallwatch.model.snapshot import SensorStatus
from stallwatch.outputs.client import Client

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """30m, 2h, 90s, 1d, or a number of seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Given "30m", "2h", "90s", "1d" or plain seconds, return seconds; fail with a usage error otherwise."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no duration: write 30m, 2h, 90s or 1d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@click.command()
@click.argument("job")
@click.option("--owner", metavar="USER", help="Whose job, where several users have one of that name.")
@click.option("--for", "duration", type=Duration(), default="30m", show_default=True, help="0 ends the silence.")
@asks_daemon
def command(client: Client, as_json: bool, job: str, owner: str | None, duration: float) -> None:
    """Tell nobody about JOB for a time. It is watched and captured all the same."""
    whose = client.mute(job, duration, owner, speaks_for())
    if as_json:
        echo_json({"training_job": job, "owner": whose, "seconds": duration})
    elif duration:
        told = f"Nobody is told about {job} of {whose} for {lasting(duration)}."
        node = client.ranks()
        click.echo(safe(f"{told} {_where(node.sensors)} `stallwatch mute {job} --for 0` ends it."))
        here = sorted({rank.training_job for rank in node.ranks})
        if job not in here:
            running = f"these do: {', '.join(here)}" if here else "none does"
            click.echo(safe(f"No job of that name runs here now ({running}); it holds for one that {whose} starts."))
    else:
        click.echo(safe(f"{job} of {whose} is told about again."))


def _where(sensors: Sequence[SensorStatus]) -> str:
    """On which nodes it holds, a sentence."""
    place = next((one for one in sensors if one.sensor == "meeting_place"), None)
    if place is None:
        return "It holds on this node, which meets no others."
    if not place.up:
        return "It holds on this node, and on the others once the meeting place is well again (`stallwatch status`)."
    return "It holds on this node, and within 10 s on all that it meets."
