"""`stallwatch auto`: let every job of a Python environment attach by itself, or no longer."""

import os
import sys
from pathlib import Path

import click

from stallwatch.errors import UsageError
from stallwatch.hook.auto import PTH_LINE, PTH_NAME
from stallwatch.node.run_once import run_once

_SECONDS = 60.0
_GIVE_PYTHON = "Give --python PATH of the jobs' interpreter."
_ASK = "import sysconfig, stallwatch.hook.auto; print(sysconfig.get_path('purelib'))"
_ASK_WITHOUT = "import sysconfig; print(sysconfig.get_path('purelib'))"


@click.command()
@click.argument("action", type=click.Choice(["enable", "disable"]))
@click.option(
    "--python",
    default=sys.executable,
    show_default=True,
    help="The interpreter of the environment that the jobs run in.",
)
def command(action: str, python: str) -> None:
    """Attach to every process of an environment that makes a process group, without a line in its code.

    For Ray, vLLM and mp.spawn, whose ranks are started by a library. It puts one file into the environment's
    site-packages; `disable` removes it. STALLWATCH_DISABLE=1 turns it off for one job.
    """
    site = _site_packages(python, needs_hook=action == "enable")
    path = site / PTH_NAME
    try:
        if action == "enable":
            path.write_text(PTH_LINE, encoding="ascii")
            click.echo(f"Jobs of {python} attach by themselves from their next start on: {path}")
        else:
            existed = path.exists()
            path.unlink(missing_ok=True)
            click.echo(f"Removed {path}." if existed else f"It was not enabled: there is no {path}.")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Run it as the owner of that environment.") from error


def _site_packages(python: str, *, needs_hook: bool) -> Path:
    try:
        ended = run_once([python, "-c", _ASK if needs_hook else _ASK_WITHOUT], _SECONDS)
    except OSError as error:
        raise UsageError(f"{python} cannot be run: {error}", _GIVE_PYTHON) from error
    if ended is None:
        raise UsageError(f"{python} did not answer within {_SECONDS:.0f} s", _GIVE_PYTHON)
    if ended.code != 0:
        raise UsageError(
            f"{python} cannot import stallwatch: {ended.last_words}",
            f"`{python} -m pip install .` in stallwatch's repository puts the hook there; it needs no other package.",
        )
    return Path(os.fsdecode(ended.output.strip().splitlines()[-1]))
