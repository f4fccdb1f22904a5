"""Logs as stores of logs hand them out: one JSON value that holds the lines, and what was written last first."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from stallwatch.encoding import json_of
from stallwatch.formats.log_prefix import json_line, read_line
from stallwatch.formats.log_time import moment

# Elasticsearch's hits.hits, CloudWatch's events, Loki's streams of versions before 2.
_LISTS: Final = (("hits", "hits"), ("events",), ("entries",), ("data", "result"), ("streams",))
_OF_LOGGERS: Final = frozenset(("level", "levelname", "severity", "timestamp", "asctime", "@timestamp", "stream"))
_LOOKS: Final = 40  # lines that are asked for their times
_FEWEST_TIMES: Final = 3


def lines_of(said: Any) -> list[str] | None:
    """Given a JSON value, return the lines of the log that it holds, each a JSON object, oldest first; None where it is
    no log."""
    entries = said if type(said) is list else next((found for path in _LISTS if (found := _at(said, path))), None)
    if entries is None and type(said) is dict and said.keys() & _OF_LOGGERS:
        entries = [said]  # one line
    if not entries or not all(type(entry) is dict for entry in entries):
        return None
    if any("values" in entry or "entries" in entry for entry in entries):
        entries = _of_streams(entries)
    lines = [json_of(entry).decode() for entry in entries if json_line(entry) is not None]
    return oldest_first(lines) if lines and 2 * len(lines) >= len(entries) else None


def _at(said: Any, path: Sequence[str]) -> list[Any] | None:
    for key in path:
        said = said.get(key) if type(said) is dict else None
    return said if type(said) is list else None


def _of_streams(streams: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Loki's: of each stream its labels, and pairs of nanoseconds and line."""
    entries = []
    for stream in streams:
        for value in stream.get("values") or stream.get("entries") or ():
            if type(value) is list and len(value) >= 2 and type(value[1]) is str:
                entries.append((str(value[0]), value[1], stream))
            elif type(value) is dict and type(value.get("line")) is str:
                entries.append((str(value.get("ts", "")), value["line"], stream))
    # In one stream's order where times are equal, the newest first.
    newest_first = any(one[0] > other[0] for one, other in pairwise(entries))
    if newest_first:
        entries.reverse()
    return [
        {"line": line, "labels": stream.get("stream") or stream.get("labels")}
        for _, line, stream in sorted(entries, key=lambda entry: (len(entry[0]), entry[0]))
    ]


def oldest_first(lines: list[str]) -> list[str]:
    """Given the lines of a log, return them in the order of their times: stores of logs show the newest first."""
    looks = lines[:: max(1, len(lines) // _LOOKS)]
    times = [when.seconds for line in looks if (when := moment(read_line(line).stamp)) is not None]
    falls = all(one >= other for one, other in pairwise(times))
    return lines[::-1] if falls and len(set(times)) >= _FEWEST_TIMES else lines
