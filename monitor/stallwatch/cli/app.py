"""The command line: one file per subcommand, imported when it is used; one place decides the exit code."""

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click

from stallwatch import __version__
from stallwatch.errors import EXIT_CRASH, EXIT_USAGE, StallwatchError

# Each name is a file of this folder (a dash is an underscore there) that holds a click command named `command`.
COMMANDS = (
    "analyze", "replay", "demo", "status", "incidents", "capture", "acknowledge", "mute", "maintenance", "mode",
    "notify-test", "config", "top", "daemon", "doctor", "selftest", "auto", "bundle", "privileged",
    "release-gpus", "node-check",
)  # fmt: skip


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called: `analyze` must not pay for the web server's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in order."""
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command's first sentence, uncut: click would end it in the middle."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, (command.help or "").partition("\n\n")[0]) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"stallwatch.cli.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's own; a word that is no command is answered with the commands that it may have meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], COMMANDS, n=2, cutoff=0.6)
            if not near:
                raise
            meant = f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, near))}?"
            raise click.UsageError(meant, ctx) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stallwatch")
def stallwatch() -> None:
    """Names the rank that hung a distributed PyTorch job, its code line, and what to do."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: a command's own, 64 wrong usage, 65 unusable input, 70 our crash.

    A subcommand returns its exit code as an int (None is 0) and raises StallwatchError for what a person can mend.
    """
    try:
        code = stallwatch.main(args=arguments, prog_name="stallwatch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except click.Abort:
        click.echo("stallwatch: interrupted", err=True)
        return 130  # as a shell reports SIGINT
    except StallwatchError as error:
        click.echo(f"stallwatch: {error}", err=True)
        if error.help:
            click.echo(f"  {error.help}", err=True)
        return error.exit_code
    except BrokenPipeError:
        # `stallwatch … | head`: the reader has seen enough. Python would complain again while flushing stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell reports SIGPIPE
    except Exception as error:  # noqa: BLE001  the guard of the command line: a crash is named, with code 70
        return _crashed(error)
    return code if isinstance(code, int) else 0


def _crashed(error: Exception) -> int:
    traceback.print_exc()
    click.echo(
        f"stallwatch: own crash ({type(error).__name__}: {error}). This is a bug in stallwatch, not in the job: "
        "please report the lines above with the command that you ran.",
        err=True,
    )
    return EXIT_CRASH
