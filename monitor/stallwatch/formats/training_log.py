"""Training and launcher logs: text in, what it means out. Prefixes of launchers and colours are taken away first."""

import re
import signal
from collections.abc import Iterator
from typing import Any, Final

from stallwatch.formats.log_launcher import Summary, exit_of
from stallwatch.formats.log_pattern import Pattern
from stallwatch.formats.log_patterns import PATTERNS
from stallwatch.formats.log_prefix import Line, read_line, shape_of, strip_colours
from stallwatch.formats.log_traceback import BODY, IGNORED, Traceback, starts, undrawn
from stallwatch.formats.outside_text import line_of
from stallwatch.model.evidence import LogEvent, LogTail

_KEPT_LINES: Final = 400
_KEPT_EVENTS: Final = 2_000
_MAXIMUM_LINE: Final = 4_096
_MOST_SHAPES: Final = 32
_FIELDS: Final = frozenset(LogEvent.__struct_fields__)
_NUMBERS: Final = frozenset(
    [
        "seq",
        "group_rank",
        "numel_in",
        "numel_out",
        "ran_ms",
        "timeout_ms",
        "enqueued",
        "completed",
        "pid",
        "rank",
        "local_rank",
    ]
)
# glog's header, "[E1127 21:01:55.098 ProcessGroupNCCL.cpp:1628] ": its date has no year and is local time.
_HEADER: Final = re.compile(r"\[[EWIF](?:\d{3,4} (?P<time>\d\d:\d\d:\d\d\.\d+))? ?[\w.]+\.(?:cpp|hpp|h|cc):\d+\] ")
_PG: Final = re.compile(
    r"\[PG(?: ID)? (?P<pg>\w+)(?: PG GUID (?P<guid>[^\s(\]]+)(?:\((?P<description>[^)]*)\))?)?"
    r" Rank (?P<group_rank>\d+)\]"
)
# strsignal(3), as schedulers print it.
_SIGNALS: Final = {
    "Illegal instruction": signal.SIGILL, "Aborted": signal.SIGABRT, "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE, "Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV,
    "Terminated": signal.SIGTERM,
}  # fmt: skip
_NUMBER_LIST: Final = re.compile(r"\d{1,6}")


def parse(data: bytes, most_events: int = _KEPT_EVENTS) -> LogTail:
    """Given a log's bytes (its end, when it is long), return its last lines and what is of note in it: of that the last
    `most_events`."""
    reading = _Reading()
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    for number, raw in enumerate(lines, 1):
        reading.feed(raw[:_MAXIMUM_LINE], number)
    reading.summary.close()
    events = sorted((*reading.events, *reading.summary.events), key=lambda event: event.line)
    tail = [line_of(strip_colours(line)) for line in lines[-_KEPT_LINES - 1 :]]
    while tail and not tail[-1]:
        tail.pop()
    return LogTail(tuple(line[:_MAXIMUM_LINE] for line in tail), tuple(events[-most_events:]))


class _Reading:
    def __init__(self) -> None:
        self.events: list[LogEvent] = []
        self.summary = Summary()
        self._tracebacks: dict[tuple[int | None, str], Traceback] = {}  # ranks write into one log at the same time
        self._ignored: set[tuple[int | None, str]] = set()  # whose next traceback is one that Python ignored
        self._shapes: list[re.Pattern[str]] = []

    def feed(self, raw: str, number: int) -> None:
        line = read_line(raw, self._shapes)
        if len(self._shapes) < _MOST_SHAPES and (shape := shape_of(line.text)):
            self._shapes.append(shape)
            line = read_line(raw, self._shapes)
        if self._traceback(line, number) or self.summary.feed(line.text, number):
            return
        for event in _events(line, number):
            self.events.append(event)

    def _traceback(self, line: Line, number: int) -> bool:
        """Collect a traceback. Its last line may mean more than an exception, and is looked at as any other."""
        writer = line.rank, line.writer
        open_one = self._tracebacks.get(writer)
        text = undrawn(line.text)
        if IGNORED.match(text):
            self._ignored.add(writer)
        if starts(line.text) or starts(text):
            self._tracebacks[writer] = Traceback(ignored=writer in self._ignored)
            self._ignored.discard(writer)
            return True
        if open_one is None and BODY.match(line.text):
            # The log was cut, or its head was lost among others' lines: what ends it must look like an exception.
            open_one = self._tracebacks[writer] = Traceback(headless=True)
        if open_one is None:
            return False
        open_one.feed(text)
        if not open_one.done:
            return True
        del self._tracebacks[writer]
        if open_one.exception:
            self.events.append(
                LogEvent(
                    kind="exception",
                    text=line.text,
                    line=number,
                    rank=line.rank,
                    local_rank=line.local_rank,
                    exception=open_one.exception,
                    message=open_one.message,
                    frame=open_one.frame,
                    secondary=open_one.ignored or any(event.secondary for event in _events(line, number)),
                )
            )
        return False


def _events(line: Line, number: int) -> Iterator[LogEvent]:
    for pattern in PATTERNS:
        if pattern.needle in line.text and (match := pattern.expression.search(line.text)):
            yield _event(pattern, match, line, number)
            return


def _event(pattern: Pattern, match: re.Match[str], line: Line, number: int) -> LogEvent:
    said = {name: value for name, value in match.groupdict().items() if value is not None}
    header, group = _HEADER.match(line.text), _PG.search(line.text)
    fields: dict[str, Any] = {"rank": line.rank, "local_rank": line.local_rank}
    if header and header["time"]:
        fields["at"] = header["time"]
    if group:
        fields["group"] = group["description"] or group["guid"] or group["pg"]
        fields["group_rank"] = int(group["group_rank"])
    for name, value in said.items():
        if name == "ranks":
            fields["ranks"] = tuple(int(rank) for rank in _NUMBER_LIST.findall(value))
        elif name == "exit":
            fields["exit_code"], fields["exit_signal"] = exit_of(int(value))
        elif name == "died_of":
            fields["exit_signal"] = int(_SIGNALS[value])
        elif name == "port":
            fields["peer"] = f"{fields.get('peer') or said.get('peer', '')}:{value}"
        elif name == "source":
            fields["ranks"] = (int(value),)
        elif name in ("ran_seconds", "stuck_seconds"):
            fields["ran_ms"] = int(value) * 1000
        elif name in _FIELDS and fields.get(name) is None:
            fields[name] = int(value) if name in _NUMBERS else value.strip()
    if "joined" in said and "expected" in said:
        fields["message"] = f"{said['joined']} of {said['expected']} joined"
    return LogEvent(kind=pattern.kind, text=line.text, line=number, secondary=pattern.secondary, **fields)
