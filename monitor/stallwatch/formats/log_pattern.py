"""What a pattern of a log line is. Its named groups are fields of LogEvent.

A file of its own: three tables of them, and their reader imports all."""

import re
from typing import NamedTuple


class Pattern(NamedTuple):
    """How one kind of line is known."""

    kind: str
    needle: str  # searched first: cheap, and most lines have none
    expression: re.Pattern[str]
    secondary: bool = False  # a follow-on by its nature: never a first cause
    by_launcher: bool = False  # only where the line ends a traceback with a launcher's own code in it


def pattern(kind: str, needle: str, expression: str, *, secondary: bool = False, by_launcher: bool = False) -> Pattern:
    """One row of the tables."""
    return Pattern(kind, needle, re.compile(expression), secondary, by_launcher)
