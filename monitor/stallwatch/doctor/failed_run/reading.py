"""Logs of any length: what may mean something is picked out of the whole file first, and only that is parsed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from stallwatch.errors import UnusableInput
from stallwatch.formats import training_log
from stallwatch.formats.log_patterns import PATTERNS
from stallwatch.model.evidence import LogEvent

_WHOLE_BYTES: Final = 8 << 20  # up to this a log is parsed as it is
_BLOCK_BYTES: Final = 4 << 20
# Of what was picked out: the first cause stands early, the launcher's summary late.
_EARLY_BYTES, _LATE_BYTES = 8 << 20, 8 << 20
_MOST_EVENTS: Final = 20_000
_AFTER_LINES: Final = 200  # a traceback and, between its lines, those of other ranks
_NEEDLES: Final = tuple(
    sorted(
        {pattern.needle.encode() for pattern in PATTERNS if pattern.kind not in ("group_status", "nccl_init_started")}
        | {b"Traceback (most recent call last)", b"ChildFailedError", b"Root Cause (first observed failure)"}
    )
)
_OF_LOGS, _MOST_FILES = (".log", ".out", ".err", ".txt"), 4_000
_OF_ATTEMPT: Final = re.compile(r"attempt_(?P<attempt>\d+)/(?P<local>\d+)/std(?:out|err)\.log$")


def read_events(paths: tuple[Path, ...]) -> tuple[tuple[str, LogEvent], ...]:
    """What is of note in each log, read before the examination: a long log takes longer than a check may. Lines are
    numbered as in the file.

    A folder stands for the logs below it (`torchrun --log-dir`). Raise UnusableInput when a named log cannot be read.
    """
    events: list[tuple[str, LogEvent]] = []
    for path in _files(paths):
        try:
            with open(path, "rb") as file:
                found = _of_file(file)
        except OSError as error:
            raise UnusableInput(f"{path}: {error.strerror}", "Name log files of the run.") from error
        place = _OF_ATTEMPT.search(str(path))
        for event in found:
            if place and event.rank is None and event.local_rank is None:
                event = msgspec.structs.replace(event, local_rank=int(place["local"]))
            events.append((str(path), event))
    return tuple(events)


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        below = sorted(one for one in path.rglob("*") if one.suffix in _OF_LOGS and one.is_file())
        if not below:
            raise UnusableInput(
                f"{path}: no file whose name ends in {', '.join(_OF_LOGS)}",
                "Name log files of the run, or their folder.",
            )
        yield from below[:_MOST_FILES]


def attempt_of_path(log: str) -> int | None:
    """The attempt by torchrun's folders (`--log-dir`); None: the path does not tell."""
    match = _OF_ATTEMPT.search(log)
    return int(match["attempt"]) if match else None


def _of_file(file: BinaryIO) -> tuple[LogEvent, ...]:
    head = file.read(_WHOLE_BYTES + 1)
    if len(head) <= _WHOLE_BYTES:
        return training_log.parse(head, _MOST_EVENTS).events
    early: list[tuple[int, bytes]] = []
    late: list[tuple[int, bytes]] = []
    early_bytes = late_bytes = 0
    for first_line, text in _pieces(file, head):
        if early_bytes < _EARLY_BYTES:
            early.append((first_line, text))
            early_bytes += len(text)
            continue
        late.append((first_line, text))
        late_bytes += len(text)
        while late_bytes > _LATE_BYTES and len(late) > 1:
            late_bytes -= len(late.pop(0)[1])
    numbers: list[int] = []
    texts: list[bytes] = []
    for first_line, text in (*early, *late):
        texts.append(text)
        numbers += range(first_line, first_line + text.count(b"\n"))
    numbers.append(numbers[-1] + 1 if numbers else 1)
    events = training_log.parse(b"".join(texts), _MOST_EVENTS).events
    return tuple(msgspec.structs.replace(event, line=numbers[min(event.line, len(numbers)) - 1]) for event in events)


def _pieces(file: BinaryIO, head: bytes) -> Iterator[tuple[int, bytes]]:
    """(number of its first line, whole lines) of every part of the file that has one of the needles."""
    line, rest = 1, b""
    data = head
    while data:
        block = rest + data
        data = file.read(_BLOCK_BYTES)
        if data:
            end = block.rfind(b"\n") + 1
            if end == 0 and len(block) < 4 * _BLOCK_BYTES:
                rest = block  # a line longer than a block
                continue
            end = end or len(block)
            block, rest = block[:end], block[end:]
        elif not block.endswith(b"\n"):
            block += b"\n"
        at = 0
        for start, stop in _windows(block):
            line += block.count(b"\n", at, start)
            yield line, block[start:stop]
            line += block.count(b"\n", start, stop)
            at = stop
        line += block.count(b"\n", at)


def _windows(block: bytes) -> Iterator[tuple[int, int]]:
    """Runs of lines around needles, in order and apart."""
    hits: list[int] = []
    for needle in _NEEDLES:
        at = block.find(needle)
        while at >= 0:
            start = block.rfind(b"\n", 0, at) + 1
            hits.append(start)
            at = block.find(needle, max(block.find(b"\n", at), at + 1))
    done = 0
    for start in sorted(set(hits)):
        if start < done:
            continue
        stop = start
        for _ in range(_AFTER_LINES):
            after = block.find(b"\n", stop) + 1
            if after == 0:
                stop = len(block)
                break
            stop = after
        yield max(start, done), stop
        done = stop
