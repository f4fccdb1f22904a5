"""`stallwatch node-check`: is this node proven unfit? For a scheduler's prolog, epilog or health check."""

import time
from collections.abc import Iterable, Iterator
from datetime import datetime

import click

from stallwatch.cli.daemon_access import asks_daemon, echo_json
from stallwatch.cli.numbers import Number
from stallwatch.cli.terminal import safe
from stallwatch.errors import EXIT_OK, EXIT_VERDICT
from stallwatch.outputs.client import Client
from stallwatch.outputs.documents import IncidentDocument

_PAST = 50


@click.command()
@click.option("--hours", type=Number(0, 24 * 31), default=24.0, show_default=True, help="How far to look back.")
@asks_daemon
def command(client: Client, as_json: bool, hours: float) -> int:
    """Exit 10 if a certain hardware verdict names this node since it was booted, and say which; else 0.

    Certain, of a fault of a GPU or of the fabric, by a rank that ran here, and by nobody called wrong: for nothing less
    is a node to be taken from its jobs. 69 when no daemon answers, which proves nothing.
    """
    since = max(time.time() - hours * 3600, time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
    listed = client.incidents(past=_PAST)
    reasons = list(unfit(listed.incidents, listed.node, since))
    if as_json:
        echo_json({"node": listed.node, "unfit": bool(reasons), "reasons": reasons})
    else:
        click.echo(safe("\n".join(reasons) or f"{listed.node}: no certain hardware verdict"))
    return EXIT_VERDICT if reasons else EXIT_OK


def unfit(incidents: Iterable[IncidentDocument], node: str, since_seconds: float) -> Iterator[str]:
    """Given a node's incidents, yield a sentence for each that proves it unfit. `since_seconds`: Unix time."""
    for one in incidents:
        verdict = one.verdicts[0] if one.verdicts else None
        opened = datetime.fromisoformat(one.opened_at).timestamp()
        if verdict is None or verdict.traits.lies_in != "hardware" or verdict.confidence != "certain":
            continue
        here = any(process.host in (None, node) for process in verdict.culprit_processes)
        if opened >= since_seconds and here and one.judged != "wrong":
            yield f"{verdict.cause} in {one.incident_id}: {verdict.summary}"
