"""Logs of any length: what may mean something is picked out of the whole file first, and only that is parsed."""

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Final

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
# slurm-7.out, stderr.log.1, job.o7 (PBS, SGE), train.log.gz
_OF_LOGS: Final = re.compile(r"(?:\.(?:log|out|err|txt)(?:\.\d+)?|\.[eo]\d+|^std(?:out|err))(?:\.(?:gz|bz2|xz))?$")
_MOST_FILES: Final = 4_000
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
                found = _of_file(_Unpacked(file, path))
        except OSError as error:
            raise UnusableInput(f"{path}: {error.strerror}", "Name log files of the run.") from error
        place = _OF_ATTEMPT.search(str(path))
        for event in found:
            if place and event.rank is None and event.local_rank is None:
                event = msgspec.structs.replace(event, local_rank=int(place["local"]))
            events.append((str(path), event))
    return tuple(events)


# First bytes of packed files, and who unpacks them.
_PACKED: Final[tuple[tuple[bytes, Callable[[BufferedReader], gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]], ...]] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\0", lzma.LZMAFile),
)
_ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"


class _Unpacked:
    """Bytes of a log, packed or not; of a packed one that is cut off or damaged, those before."""

    def __init__(self, file: BufferedReader, path: Path) -> None:
        first = file.peek(6)
        if first.startswith(_ZSTANDARD):
            raise UnusableInput(f"{path}: packed with zstd", f"Unpack it first: zstd -d {path}")
        unpack = next((by for magic, by in _PACKED if first.startswith(magic)), None)
        self._file = unpack(file) if unpack else file

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            try:
                part = self._file.read1(size)
            except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
                break
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        below = sorted(one for one in path.rglob("*") if _OF_LOGS.search(one.name) and one.is_file())
        if not below:
            raise UnusableInput(
                f"{path}: no file whose name ends in .log, .out, .err or .txt",
                "Name log files of the run, or their folder.",
            )
        yield from below[:_MOST_FILES]


def attempt_of_path(log: str) -> int | None:
    """The attempt by torchrun's folders (`--log-dir`); None: the path does not tell."""
    match = _OF_ATTEMPT.search(log)
    return int(match["attempt"]) if match else None


def _of_file(file: _Unpacked) -> tuple[LogEvent, ...]:
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


def _pieces(file: _Unpacked, head: bytes) -> Iterator[tuple[int, bytes]]:
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
