"""`stallwatch demo`: a real local job that hangs, a daemon that is not told why, and its verdict."""

import os
import random
import signal
import sys
import time
from types import FrameType

import click
from rich.console import Console

from stallwatch.cli.numbers import WholeNumber
from stallwatch.demo.catalogue import FAULTS, find
from stallwatch.demo.job import need_gpu, need_torch
from stallwatch.demo.outcome import DemoOutcome
from stallwatch.demo.play import play, unplayed
from stallwatch.demo.story import outcome_lines
from stallwatch.encoding import json_of
from stallwatch.errors import StallwatchError, UsageError

EXIT_DISAGREES = 1


@click.command()
@click.option("--fault", "name", default="lock", show_default=True, help="Which fault; `--list` names them.")
@click.option("--ranks", default=4, show_default=True, type=WholeNumber(2, 64), help="Processes of the job.")
@click.option("--seed", type=WholeNumber(0), help="Chooses the rank that the fault strikes; default: by chance.")
@click.option("--backend", type=click.Choice(("gloo", "nccl")), help="Default: nccl where every rank has a GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object.")
@click.option("--keep", is_flag=True, help="Leave job and daemon standing until Ctrl-C, to look at the page.")
@click.option("--list", "list_faults", is_flag=True, help="List the faults and end.")
def command(
    name: str, ranks: int, seed: int | None, backend: str | None, as_json: bool, keep: bool, list_faults: bool
) -> int:
    """Start a real training job that hangs and a daemon that is not told why; show the verdict.

    Exit code 0 when the verdict is the fault, 1 when it is not.
    """
    if list_faults:
        _list_faults(as_json)
        return 0
    fault = find(name)
    need_torch()
    if backend == "nccl":
        need_gpu()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    began = time.monotonic()

    def tell(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  ", end="")
        console.print(text, markup=False)

    def linger(outcome: DemoOutcome) -> None:
        status.stop()
        if as_json:
            sys.stdout.write(json_of(outcome).decode() + "\n")
            sys.stdout.flush()
        else:
            _show(console, outcome, keep)
        if keep and not outcome.problem:
            _wait_for_interrupt(console)

    seed = seed if seed is not None else random.SystemRandom().randrange(1 << 16)
    with console.status("a job trains, a daemon watches") as status:
        try:
            outcome = play(fault, ranks, seed, tell, backend=backend, environment=os.environ, linger=linger)
        except UsageError:
            raise
        except StallwatchError as error:  # daemon or job did not stand: no verdict is not the right one
            outcome = unplayed(fault, ranks, seed, error)
            linger(outcome)
    return 0 if outcome.agrees else EXIT_DISAGREES


def _list_faults(as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json_of([{"name": f.name, "sentence": f.sentence} for f in FAULTS]).decode() + "\n")
        return
    width = max(len(fault.name) for fault in FAULTS)
    for fault in FAULTS:
        click.echo(f"{fault.name:<{width}}  {fault.sentence}")


def _show(console: Console, outcome: DemoOutcome, keep: bool) -> None:
    for line in outcome_lines(outcome, page_stays=keep):
        style = ("green" if outcome.agrees else "red") if line.startswith(("Right", "Wrong")) else None
        console.print(line, style=style, markup=False)


def _wait_for_interrupt(console: Console) -> None:
    console.print("Job and daemon stay as they are until Ctrl-C.", style="bold")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return  # asked for: the exit code still says whether the verdict was right


def _interrupted(signal_number: int, frame: FrameType | None) -> None:
    """Once: what was started is being ended then, within seconds, and a second Ctrl-C must not leave it behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
