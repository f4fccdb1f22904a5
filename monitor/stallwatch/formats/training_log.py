"""Training and launcher logs: text in, what it means out. Prefixes of launchers and colours are taken away first."""

import re
import signal
from collections.abc import Iterator
from math import prod
from typing import Any, Final

from msgspec.structs import replace

from stallwatch.formats import kernel_log
from stallwatch.formats.log_blocks import Blocks
from stallwatch.formats.log_exports import oldest_first
from stallwatch.formats.log_head import WATCHDOGS_WORDS, LogHead
from stallwatch.formats.log_last_lines import error_like, first_to_look_at
from stallwatch.formats.log_launcher import Summary, exit_of
from stallwatch.formats.log_lines import MAXIMUM_LINE, cut_lines, outdented, refilled, uncut, whole_lines
from stallwatch.formats.log_messages import Messages
from stallwatch.formats.log_mismatch import sides_of
from stallwatch.formats.log_owners import LineOwners, apart_by_actor
from stallwatch.formats.log_pattern import Pattern
from stallwatch.formats.log_patterns import PATTERNS
from stallwatch.formats.log_prefix import (
    Line,
    lines_within,
    read_line,
    shape_before_bars,
    shape_of,
    strip_colours,
    within_json,
)
from stallwatch.formats.log_progress import LogProgress
from stallwatch.formats.log_time import LineTime, moment
from stallwatch.formats.log_traceback import (
    BODY,
    CHAINED,
    IGNORED,
    Traceback,
    demangled,
    lone_exception,
    raised_by,
    starts,
    undrawn,
)
from stallwatch.formats.outside_text import line_of
from stallwatch.model.log_event import PROCESS_ENDS, LogEvent, LogTail

_KEPT_LINES: Final = 400
_KEPT_EVENTS: Final = 2_000
_INT64: Final = 2**63
_MOST_SHAPES: Final = 32
_MOST_BETWEEN: Final = 2  # lines of others between two frames of a traceback
_LONGEST_MATCH: Final = 256
_FIELDS: Final = frozenset(LogEvent.__struct_fields__)
_NUMBERS: Final = frozenset(
    [
        "seq",
        "group_rank",
        "numel_in",
        "numel_out",
        "timeout_ms",
        "enqueued",
        "completed",
        "pid",
        "rank",
        "local_rank",
        "joined",
        "expected",
        "exit_signal",
    ]
)
# glog's header, "[E1127 21:01:55.098 ProcessGroupNCCL.cpp:1628] ": its date has no year and is local time.
_HEADER: Final = re.compile(r"\[[EWIF](?P<time>\d{3,4} \d\d:\d\d:\d\d\.\d+)?(?: \d+)? ?[\w.]+\.(?:cpp|hpp|h|cc):\d+\] ")
_AGENTS_TIME: Final = re.compile(r"[EWIF](?P<time>\d{4} \d\d:\d\d:\d\d\.\d+) ")
# 2.3: [PG 1 Rank 1]; 2.4: [PG 3 (mesh_sp) Rank 1]; 2.5 and later: [PG ID 0 PG GUID 0(default_pg) Rank 118], where GUID
# or description may be missing.
_PG: Final = re.compile(
    r"\[PG(?: ID)? (?P<pg>\w+)(?: PG GUID (?P<guid>[^\s(\]]*))?\s?(?:\((?P<description>[^)]*)\))?"
    r"\s+Rank (?P<group_rank>\d+)\]"
)
# nccl2's, torch 2.14 and later: its rank in the group, and the group's name.
_NCCL2: Final = re.compile(r"\[TC\](?:\[rank=(?P<group_rank>\d+)\])?\[name=(?P<name>[^\]]*)\]")
# NCCL's own lines: "node0:1888:2011 [0] …", perhaps with a time before them.
_NCCL: Final = re.compile(r"(?:\[[^\]]*\] )?(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[\d+\] (?=.*NCCL )")
_GROUP_RANK: Final = re.compile(r"\[Rank (\d+)\]")
# strsignal(3), as schedulers print it.
_SIGNALS: Final = {
    "Illegal instruction": signal.SIGILL, "Aborted": signal.SIGABRT, "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE, "Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV,
    "Terminated": signal.SIGTERM,
} | {one.name: one for one in signal.Signals}  # fmt: skip
_NUMBER_LIST: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MOST_RANKS: Final = 4_096  # that one line names
# What jobs print that go well, and those that do not: a log of these alone is one in which nothing is known.
_NEWS: Final = frozenset(("nccl_init_started", "nccl_init_complete", "init_waiting", "trying_again", "clean_end"))
# Parts of a log that are of one rank: multiprocessing's and Ray's of who raised, Composer's of what each rank wrote.
_CHILD: Final = re.compile(r"-- Process (?P<local>\d+) terminated with the following error:")
_SECTION: Final = re.compile(r"-{4,} ?(?P<mark>Begin|End) global rank (?P<rank>\d+) STD(?:OUT|ERR) ?-{4,}")
_WORKER: Final = re.compile(r"\[Rank (?P<rank>\d+)\]$")  # Ray Train's controller, before what that worker raised
_OF_SEVERAL_ENGINES: Final = re.compile(r"\(EngineCore_DP[1-9]")  # vLLM's, each of which counts its own workers
_LISTED: Final = re.compile(r'"(?:stdout|stderr)_lines": \[')  # ansible prints what a command wrote as JSON
_LISTED_LINE: Final = re.compile(r'\s+"(?P<text>(?:[^"\\]|\\.)*)",?$')


def parse(data: bytes, most_events: int = _KEPT_EVENTS) -> LogTail:
    """Given a log's bytes (its end, when it is long), return its last lines and what is of note in it: of that the last
    `most_events`."""
    reading = _Reading()
    lines = outdented(oldest_first(data.decode("utf-8", "surrogateescape").split("\n")))
    for number, raw in whole_lines(refilled(uncut(lines))):
        for line in lines_within(raw):
            reading.feed(line, number)
    events = reading.ended()
    if lines and lines[-1] and data.endswith(lines[-1][-_LONGEST_MATCH:].encode("utf-8", "surrogateescape")):
        events = [replace(event, cut=True) if event.line == len(lines) else event for event in events]
    if any(event.exception for event in events):
        ends = cut_lines(lines)
        events = [replace(event, cut=True) if event.exception and event.line in ends else event for event in events]
    if not reading.kernel.events and all(event.kind in _NEWS for event in events):
        ended = max((event.line for event in events if event.kind == "clean_end"), default=0)
        events += (
            error_like(lines, max(ended, reading.went_on_at)) if ended else first_to_look_at(lines, reading.went_on_at)
        )
    tail = [line_of(strip_colours(line)) for line in lines[-_KEPT_LINES - 1 :]]
    while tail and not tail[-1]:
        tail.pop()
    return LogTail(
        tuple(line[:MAXIMUM_LINE] for line in tail),
        tuple(events[-most_events:]),
        tuple(kernel_log.with_lost_causes(reading.kernel.events)[-most_events:]),
        reading.owners.nodes,
        reading.owners.by_local_rank,
    )


class _Reading:
    def __init__(self) -> None:
        self.events: list[LogEvent] = []
        self.summary = Summary()
        self.kernel = kernel_log.KernelLogReading()
        self._blocks = Blocks(self.events)
        self.owners = LineOwners()
        self._writers: dict[int, str] = {}  # of an event, by its place
        self._tracebacks: dict[tuple[int | None, str], Traceback] = {}  # ranks write into one log at the same time
        self._broken: dict[tuple[int | None, str], tuple[int, Traceback]] = {}  # by another process' line, and where
        self._ignored: set[tuple[int | None, str]] = set()  # whose next traceback is one that Python ignored
        self._chained: set[tuple[int | None, str]] = set()  # whose next traceback belongs to the one before
        self._shapes: list[re.Pattern[str]] = []
        self._now: LineTime | None = None
        self._progress = LogProgress()
        self._listed = False
        self._section: int | None = None  # whose part of the log this is
        self._child: int | None = None  # local rank of a child, whose traceback comes next
        self._worker: int | None = None  # likewise a rank
        self._by_launcher = False  # the traceback that this line ended has a launcher's own code in it
        self._messages = Messages()
        self._head = LogHead()

    def feed(self, raw: str, number: int) -> None:
        if self._listed and (match := _LISTED_LINE.match(raw)):
            raw = match["text"].replace('\\"', '"').replace("\\t", "\t").replace("\\\\", "\\")
        elif '_lines": [' in raw:
            self._listed = _LISTED.search(raw) is not None
        kernels = len(self.kernel.events)
        may_tell = kernel_log.may_tell(raw)
        if may_tell:
            self.kernel.feed(within_json(raw) if raw[:1] == "{" else raw, number)
        line = read_line(raw, self._shapes)
        if may_tell and len(self.kernel.events) == kernels and line.text != raw:
            self.kernel.feed(line.text, number)  # in what a container or a collector of logs passes on
        if len(self._shapes) < _MOST_SHAPES and (shape := shape_of(line.text) or shape_before_bars(raw)):
            self._shapes.append(shape)
            line = read_line(raw, self._shapes)
        line = self._messages.feed(self._in_section(line), number)
        self.owners.feed(line)
        self._progress.feed(line, raw, number, self._tell_time(line))
        before = len(self.events)
        part_of_block = self._traceback(line, number) or self._blocks.feed(line, number)
        if not part_of_block and not self.summary.feed(line.text, number):
            self.events += _events(line, number, by_launcher=self._by_launcher)
            if len(self.events) == before and (alone := lone_exception(line.text)):
                self.events.append(_of_exception(line, number, *alone))
        self._head.feed(line.text, self.events[before:])
        for place in range(before, len(self.events)):
            self._complete(place, line)

    def _in_section(self, line: Line) -> Line:
        if "global rank" in line.text and (match := _SECTION.match(line.text)):
            self._section = int(match["rank"]) if match["mark"] == "Begin" else None
        elif "terminated with the following" in line.text and (match := _CHILD.match(line.text)):
            self._child = int(match["local"])
            last = self.events[-1] if self.events else None
            if last is not None and last.exception == "Exception" and not last.message:  # spawn's own, to torch 1.7
                self.events[-1] = replace(last, exception="ProcessRaisedException")
        elif line.text.startswith("[Rank ") and (match := _WORKER.match(line.text)):
            self._worker = int(match["rank"])
        return line._replace(rank=self._section) if self._section is not None and line.rank is None else line

    def ended(self) -> list[LogEvent]:
        """Close what is open and return all events, each with its rank where the log tells it."""
        self.summary.close()
        self.owners.take_communicators(self.events)
        told = [self.owners.named(event, self._writers.get(place, "")) for place, event in enumerate(self.events)]
        told = apart_by_actor(told, self._writers)
        if self.owners.tasks_are_ranks():
            told = [replace(e, rank=e.ranks[0]) if _of_one_task(e) else e for e in told]
        else:
            told = [replace(e, ranks=()) if e.kind in ("process_failed", "memory_killed") else e for e in told]
        told += self._progress.last_word(told)
        known = (*told, *self.summary.events)
        told += self._progress.began_again(known)
        whose = {place: event.rank for place, event in enumerate(self.events)}  # as the log marks its lines
        told = [
            replace(event, went_on=True) if self._progress.went_on(event, known, whose.get(place)) else event
            for place, event in enumerate(told)
        ]
        told = [replace(e, before=self._head.before) if e.kind in WATCHDOGS_WORDS else e for e in told]
        return sorted((*self.owners.of_one_job(told), *self.summary.events), key=lambda event: event.line)

    @property
    def went_on_at(self) -> int:
        """The line up to which nothing ended training, by the steps that are told after it."""
        return self._progress.went_on_at

    def _tell_time(self, line: Line) -> LineTime | None:
        """The line's own time, if it has one; those behind it without one are taken as written then."""
        said = line.stamp
        if not said and (header := _HEADER.match(line.text) or _AGENTS_TIME.match(line.text)):
            said = header["time"] or ""
        own = moment(said)
        self._now = own or self._now
        return own

    def _complete(self, place: int, line: Line) -> None:
        event = self.events[place]
        fields: dict[str, Any] = {}
        if self._now is not None and event.at_seconds is None:
            fields["at_seconds"], fields["utc"] = self._now
        if event.at is None and line.stamp:
            fields["at"] = line.stamp
        # Whoever writes that is not who ended.
        of_another = event.kind == "actor_died" or (event.kind in PROCESS_ENDS and event.rank is not None)
        for name in () if of_another else ("task", "pid", "host"):
            if getattr(event, name) is None and (value := getattr(line, name)) is not None:
                fields[name] = value
        self.events[place] = replace(event, **fields) if fields else event
        self._writers[place] = line.writer
        self._blocks.begin(place, line)

    def _traceback(self, line: Line, number: int) -> bool:
        """Collect a traceback. Its last line may mean more than an exception, and is looked at as any other."""
        writer = line.rank, line.writer if line.rank is None else ""  # what is before a rank's mark may count lines
        open_one = self._tracebacks.get(writer)
        self._by_launcher = False
        text = undrawn(line.text)
        if IGNORED.match(text):
            self._ignored.add(writer)
        if CHAINED.match(text):
            self._chained.add(writer)
        if starts(line.text) or starts(text):
            self._tracebacks[writer] = Traceback(
                ignored=writer in self._ignored, chained=writer in self._chained, of_rank=raised_by(text)
            )
            self._ignored.discard(writer)
            self._chained.discard(writer)
            return True
        if open_one is None and BODY.match(line.text):
            # The log was cut, or its head was lost among others' lines: what ends it must look like an exception.
            broke_at, broken = self._broken.pop(writer, (0, None))
            goes_on = broken is not None and number - broke_at <= _MOST_BETWEEN
            open_one = broken.reopened() if broken is not None and goes_on else Traceback(headless=True)
            self._tracebacks[writer] = open_one
        if open_one is None:
            return False
        open_one.feed(text)
        if not open_one.done:
            return True
        del self._tracebacks[writer]
        if not open_one.exception:
            self._broken[writer] = number, open_one
        self._by_launcher = open_one.of_launcher
        if open_one.exception:
            secondary = open_one.ignored or any(event.secondary for event in _events(line, number))
            event = _of_exception(line, number, open_one.exception, open_one.message)
            event = replace(event, frame=open_one.frame, secondary=secondary, chained=open_one.chained)
            event = replace(event, passed_from=open_one.of_rank, by_launcher=open_one.of_launcher)
            if self._child is not None and event.local_rank is None:
                event = replace(event, local_rank=self._child)
            if self._worker is not None and event.rank is None:
                event = replace(event, rank=self._worker)
            self._worker = None
            self.events.append(event)
        return False


def _of_exception(line: Line, number: int, exception: str, message: str | None) -> LogEvent:
    return LogEvent(
        kind="exception",
        text=line.text,
        line=number,
        rank=line.rank,
        local_rank=line.local_rank,
        exception=exception,
        message=message,
    )


def _events(line: Line, number: int, *, by_launcher: bool = False) -> Iterator[LogEvent]:
    for pattern in PATTERNS:
        if pattern.by_launcher and not by_launcher:
            continue
        if pattern.needle in line.text and (match := pattern.expression.search(line.text)):
            yield _event(pattern, match, line, number)
            return


def _event(pattern: Pattern, match: re.Match[str], line: Line, number: int) -> LogEvent:
    said = {name: value for name, value in match.groupdict().items() if value is not None}
    header = _HEADER.match(line.text)
    fields: dict[str, Any] = {"rank": line.rank, "local_rank": line.local_rank}
    # Whoever writes that tells of another; and torch writes no such line: nvidia-smi's stands within its own.
    of_another = pattern.kind in PROCESS_ENDS and said.keys() & {"rank", "local_rank"}
    if of_another or pattern.kind == "actor_died" or (pattern.kind == "gpu_unreachable" and header):
        fields = {"rank": None, "local_rank": None}
    if _OF_SEVERAL_ENGINES.search(line.writer):
        said.pop("rank", None)
    fields |= _written_by(line, header)
    for name, value in said.items():
        if own_form := _told(name, value):
            fields |= own_form
        elif name == "port":
            fields["peer"] = f"{fields.get('peer') or said.get('peer', '')}:{value}"
        elif name in _FIELDS and fields.get(name) is None:
            fields[name] = int(value) if name in _NUMBERS else value.strip()
    if "joined" in said and "expected" in said:
        fields["message"] = f"{said['joined']} of {said['expected']} joined"
    if pattern.kind == "collective_mismatch":
        fields["sides"] = sides_of(line.text)
    # No number of theirs is longer, and what holds one could not be passed on.
    fields = {name: value for name, value in fields.items() if type(value) is not int or -_INT64 <= value < _INT64}
    if "ranks" in fields:
        fields["ranks"] = tuple(rank for rank in fields["ranks"] if rank < _INT64)
    return LogEvent(kind=pattern.kind, text=line.text, line=number, secondary=pattern.secondary, **fields)


def _written_by(line: Line, header: re.Match[str] | None) -> dict[str, Any]:
    """What torch's and NCCL's own beginnings of a line tell: when, in which group, on which host."""
    fields: dict[str, Any] = {}
    if header and header["time"]:
        fields["at"] = header["time"].partition(" ")[2]
        if not line.stamp and (when := moment(header["time"])):
            fields["at_seconds"], fields["utc"] = when
    if group := _PG.search(line.text):
        fields["group"] = group["description"] or group["guid"] or group["pg"]
        fields["group_rank"] = int(group["group_rank"])
        fields["group_id"] = group["guid"] or group["pg"]
    elif header and (own := _NCCL2.match(line.text, header.end())):
        fields["group"] = fields["group_id"] = own["name"]
        fields["group_rank"] = int(own["group_rank"]) if own["group_rank"] else None
    elif header and (place := _GROUP_RANK.match(line.text, header.end())):
        fields["group_rank"] = int(place[1])  # torch 2.2 names no group
    if writer := _NCCL.match(line.text):
        fields["host"], fields["pid"] = writer["host"], int(writer["pid"])
    return fields


def _told(name: str, value: str) -> dict[str, Any]:
    """Fields that a pattern's part of that name tells in a form of its own; none where it is a field itself."""
    match name:
        case "ranks":
            return {"ranks": _numbers_in(value)}
        case "source":
            return {"ranks": (int(value),)}
        case "exit":
            code, signal = exit_of(int(value))
            return {"exit_code": code, "exit_signal": signal}
        case "died_of":
            known = _SIGNALS.get(value) or _SIGNALS.get(value.capitalize())
            return {"exit_signal": int(known) if known else None}
        case "mangled":
            return {"exception": demangled(value)}
        case "shape":
            elements = prod(int(size) for size in re.findall(r"\d+", value))
            return {"numel_in": elements, "numel_out": elements}
        case _:
            return {}


def _numbers_in(text: str) -> tuple[int, ...]:
    """ "0-2,5" and "1, 5, 12"."""
    found: list[int] = []
    for first, last in _NUMBER_LIST.findall(text):
        found += range(int(first), min(int(last or first), int(first) + _MOST_RANKS) + 1)
    return tuple(found[:_MOST_RANKS])


def _of_one_task(event: LogEvent) -> bool:
    return event.kind in ("process_failed", "memory_killed") and event.rank is None and len(event.ranks) == 1
