"""`stallwatch maintenance`: a node is worked on, and nobody is told of it and its jobs."""

import shlex

import click

from stallwatch.cli.daemon_access import asks_daemon, echo_json, speaks_for
from stallwatch.cli.mute import Duration
from stallwatch.cli.terminal import lasting, safe
from stallwatch.outputs.client import Client


@click.command()
@click.argument("nodes", nargs=-1, metavar="[NODE]…")
@click.option("--for", "duration", type=Duration(), default="2h", show_default=True, help="0 ends it.")
@click.option("--why", default="", help="What is done there; people are shown it.")
@asks_daemon
def command(client: Client, as_json: bool, nodes: tuple[str, ...], duration: float, why: str) -> None:
    """Tell nobody of a node (without NODE: this one) and of the jobs that run there, for a time.

    This holds on all nodes that meet. It is watched and captured all the same. A scheduler's drain or reservation may
    call it.
    """
    where = [client.maintenance(node, duration, why, speaks_for()) for node in (nodes or ("",))][-1]
    which = ", ".join(nodes) or "this node"
    if as_json:
        echo_json({"nodes": nodes, "seconds": duration, "where": where})
    elif duration:
        ends = shlex.join(["stallwatch", "maintenance", *nodes, "--for", "0"])
        click.echo(safe(f"Nobody is told of {which} and its jobs for {lasting(duration)}, {where}. `{ends}` ends it."))
    else:
        click.echo(safe(f"{which}: the maintenance is over, {where}."))
