"""What a person would look at first in a log in which nothing is known."""

import re
from typing import Final

from stallwatch.formats.log_lines import MAXIMUM_LINE
from stallwatch.formats.log_prefix import read_line
from stallwatch.model.log_event import LogEvent

_ERROR_LIKE: Final = re.compile(
    r"\b(?:error|errors|fatal|failed|failure|fail|exception|abort(?:ed)?|killed|panic|cannot|can't|unable to|denied"
    r"|invalid|refused|timed out|mismatch|segfault|crash(?:ed)?|traceback \(most recent)\b|Error\b|Exception\b",
    re.IGNORECASE,
)
# A metric, which no more tells of a failure than a loss does.
_METRIC: Final = re.compile(
    r"\b(?:\w+_)?(?:errors?|failure|mismatch)['\"]?\s*[:=]\s*-?(?:\d*\.\d+(?:e[+-]?\d+)?|\d+e-\d+)(?![\d.])",
    re.IGNORECASE,
)
# A count of none; a try before the last; NCCL's information; c10d's word on an address family that it does not need.
_NO_ERRORS: Final = re.compile(
    r"\b(?:no|0|without|zero) (?:error|failure|exception)s?\b|\b(?:error|failure|exception)s ?[=:] ?0\b(?!\.)"
    r"|\bretry(?:ing)?\b.*\battempt (\d+)(?:/| of )(?!\1\b)\d|\bNCCL INFO\b|^\[W.*errno: 97\b"
    r"|has failed to shutdown the rendezvous",
    re.IGNORECASE,
)
_MOST_ERROR_LIKE: Final = 5
_MOST_LAST_LINES: Final = 3


def first_to_look_at(lines: list[str], went_on_at: int) -> list[LogEvent]:
    """Given a log's lines, and up to which of them training went on after all, return the last ones that look like
    errors; where all of these stand before that line, the log's end with them."""
    return error_like(lines, went_on_at) or [*error_like(lines[:went_on_at], 0), *last_lines(lines)]


def error_like(lines: list[str], after: int) -> list[LogEvent]:
    """Given a log's lines, return the last ones that look like errors, behind the line with that number."""
    found: list[LogEvent] = []
    for number in range(len(lines), max(after, len(lines) - 4_000), -1):
        line = read_line(lines[number - 1][:MAXIMUM_LINE])
        if _ERROR_LIKE.search(_METRIC.sub("", line.text)) and not _NO_ERRORS.search(line.text):
            found.append(LogEvent("error_like", line.text, number, secondary=True))
            if len(found) == _MOST_ERROR_LIKE:
                break
    return found[::-1]


def last_lines(lines: list[str]) -> list[LogEvent]:
    """Given a log's lines, return the last ones that hold anything: what is left to show where nothing looks like an
    error."""
    held = [(number, line) for number, line in enumerate(lines[-200:], max(1, len(lines) - 199)) if line.strip()]
    read = ((number, read_line(line[:MAXIMUM_LINE])) for number, line in held[-_MOST_LAST_LINES:])
    return [LogEvent("last_line", line.text, number, secondary=True, at=line.stamp or None) for number, line in read]
