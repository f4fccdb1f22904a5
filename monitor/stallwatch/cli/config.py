"""`stallwatch config`: is this file right, and what could be in it?"""

from pathlib import Path
from typing import cast

import click

from stallwatch import config
from stallwatch.cli.daemon_access import echo_json
from stallwatch.cli.terminal import safe
from stallwatch.clock import SystemClock
from stallwatch.outputs.build import telling
from stallwatch.outputs.output import Control
from stallwatch.outputs.sockets import split_address


@click.group()
def command() -> None:
    """Check a configuration file, or print an example."""


@command.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the effective configuration as JSON, without secrets.")
def check(file: Path | None, as_json: bool) -> None:
    """Refuse (exit 64) an unknown key, a wrong value or an unusable address in FILE and in STALLWATCH_* variables."""
    settings, warnings = config.load(file, config.current_environment(), strict=True)
    if settings.http.listen:
        split_address(settings.http.listen)
    telling(settings, cast("Control", None), SystemClock())  # made as the daemon makes them; none starts, none asks it
    met = ""
    if settings.fleet.url:
        from stallwatch.fleet.place_settings import exposed, settings_of
        from stallwatch.fleet.try_place import try_place

        place = settings_of(settings.fleet)
        assert place is not None
        trial = try_place(place, config.node_of(settings))
        warnings, met = [*warnings, *filter(None, (exposed(place),)), *trial.warnings], trial.well
    if as_json:
        echo_json(config.without_secrets(settings))
    else:
        click.echo(f"{file or 'environment and defaults'}: ok")
        if met:
            click.echo(safe(f"The place where nodes meet was tried, {met}"))
        for warning in warnings:
            click.echo(warning, err=True)


@command.command()
def example() -> None:
    """Print every key with its meaning, its variable and its default."""
    click.echo(config.example(), nl=False)
