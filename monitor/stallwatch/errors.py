"""What can go wrong, and what to do about it.

StallwatchError               carries `help`: the next thing a person should do
├── UsageError                exit 64: the command line or the configuration is wrong
├── UnusableInput             exit 65: nothing in the given input could be read
├── Denied                    the kernel refused: which capability or setting is missing
└── DeadlineExceeded          a child did not answer in time
"""

EXIT_OK = 0
EXIT_VERDICT = 10
EXIT_UNDECIDED = 11
EXIT_SLOW_OR_WAITING = 12
EXIT_USAGE = 64  # sysexits.h EX_USAGE
EXIT_UNUSABLE = 65  # sysexits.h EX_DATAERR
EXIT_CRASH = 70  # sysexits.h EX_SOFTWARE


class StallwatchError(Exception):
    """Base of every error that stallwatch raises on purpose; `help` says what to do next."""

    exit_code = EXIT_CRASH

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.help = help


class UsageError(StallwatchError):
    """The command or a setting was wrong."""

    exit_code = EXIT_USAGE


class UnusableInput(StallwatchError):
    """What was given cannot be read."""

    exit_code = EXIT_UNUSABLE


class Denied(StallwatchError):
    """The daemon does not do that for this user."""


class DeadlineExceeded(StallwatchError):
    """What was asked did not answer in time."""
