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


def pattern(kind: str, needle: str, expression: str, *, secondary: bool = False) -> Pattern:
    """One row of the tables."""
    return Pattern(kind, needle, re.compile(expression), secondary)
