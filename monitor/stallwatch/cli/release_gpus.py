"""`stallwatch release-gpus`: have every device of a GPU closed for a reset, a change of MIG or a new driver."""

import getpass
import os
import time
from datetime import datetime, timedelta
from pathlib import Path

import click

from stallwatch import config
from stallwatch.cli.daemon_access import echo_json
from stallwatch.cli.mute import Duration
from stallwatch.cli.terminal import safe
from stallwatch.errors import DeadlineExceeded, UsageError
from stallwatch.node import gpu_release
from stallwatch.node.gpu_release import Holder

_CLOSE_SECONDS = 30.0  # a look, its answer and the end of its process; one that hangs in the driver takes longer
_POLL_SECONDS = 0.2


@click.command()
@click.option(
    "--for", "duration", type=Duration(), default="15m", show_default=True, help="At most 1d; 0 has them watched again."
)
@click.option("--config", "config_file", type=click.Path(dir_okay=False), help="The daemon's configuration file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(duration: float, config_file: str | None, as_json: bool) -> None:
    """Close every handle on this node's GPUs for a time, so that a reset, a MIG change or a driver upgrade succeeds.

    Ranks are watched all the same. It ends by itself; who else has a GPU open is listed. A drain may call it.
    """
    settings, _ = config.load(config_file, config.current_environment())
    file = Path(settings.daemon.run_directory) / gpu_release.FILE
    seconds = min(duration, gpu_release.LONGEST_SECONDS)
    until = (datetime.now().astimezone() + timedelta(seconds=seconds)).strftime("%H:%M:%S %Z")
    try:
        gpu_release.release(file, seconds, until, os.environ.get("SUDO_USER") or getpass.getuser())
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror}", "Run it as root; if the daemon's run directory is another one, give --config."
        ) from error
    others = wait_for_ours(_CLOSE_SECONDS) if seconds else ()
    if as_json:
        listed = [one._asdict() for one in others]
        echo_json({"seconds": seconds, "until": until if seconds else None, "others": listed})
    elif not seconds:
        click.echo("GPUs are watched again within half a minute.")
    else:
        click.echo(safe(f"No process of stallwatch has a GPU open, until {until}. `--for 0` ends it."))
        for one in others:
            click.echo(safe(f"pid {one.pid} ({one.name}) has one open and is not ours: a reset waits for its end."))


def wait_for_ours(seconds: float) -> tuple[Holder, ...]:
    """Wait until nothing of ours has a GPU open; return who else has. Raise DeadlineExceeded."""
    end = time.monotonic() + seconds
    while True:
        held = tuple(gpu_release.holders())
        ours = [one for one in held if one.is_ours]
        if not ours:
            return held
        if time.monotonic() > end:
            named = ", ".join(f"pid {one.pid}" for one in ours)
            raise DeadlineExceeded(
                f"a process of ours still has a GPU open after {seconds:.0f} s: {named}",
                "It hangs in the driver, or belongs to a daemon with another configuration (--config); "
                "`systemctl stop stallwatch stallwatch-privileged` ends all.",
            )
        time.sleep(_POLL_SECONDS)
