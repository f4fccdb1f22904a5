"""What the child does with one job."""

import os
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from stallwatch.bundle.child import OpenFile, ParsedParts, ParseTask, PartAnswer
from stallwatch.bundle.file_kinds import KINDS, Guess
from stallwatch.encoding import msgpack_of
from stallwatch.formats.recorder_table import RecorderTable
from stallwatch.formats.unreadable import Unreadable

_NO_MEMORY: Final = "reading it takes more memory than it may"


def import_parsers() -> None:
    """Every one that a look's bundle needs."""
    from stallwatch.bundle import guessing, unpacked  # noqa: F401
    from stallwatch.formats import hook_report, kernel_log, process, py_spy_profile  # noqa: F401


def answer(job: ParseTask, files: Sequence[int]) -> ParsedParts:
    """Parse every part. A file that cannot be read is a problem of its own."""
    try:
        parsed = [_parsed(part, file) for part, file in zip(job.parts, files, strict=True)]
        if job.rank is None:
            return ParsedParts(tuple(_encoded(value) for value in parsed))
        return _summarised(job.rank, parsed)
    except MemoryError:
        return ParsedParts(tuple(PartAnswer(problem=_NO_MEMORY) for _ in job.parts), spent=True)


def _parsed(part: OpenFile, file: int) -> Any:
    """What the file says, or a PartAnswer with the problem."""
    kind = KINDS[part.kind]
    try:
        if kind.of_log:
            from stallwatch.bundle.unpacked import parse_log  # a folder of dumps holds none

            if (log := parse_log(file)) is not None:
                return Guess("log", log) if part.kind == "guess" else log
        return kind.parse(_read(file, kind.maximum_bytes), part.source, part.look)
    except Unreadable as error:
        return PartAnswer(problem=str(error))
    except OSError as error:
        return PartAnswer(problem=f"it cannot be read: {error.strerror}")
    except RecursionError:
        return PartAnswer(problem="it is nested too deeply")
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - what a file does to its parser costs that file alone
        return PartAnswer(problem=f"it cannot be made sense of ({type(error).__name__})")


def _read(file: int, maximum_bytes: int) -> bytes:
    """The last `maximum_bytes` of the file, as it is now: it may still be growing."""
    at = max(0, os.fstat(file).st_size - maximum_bytes)
    parts = []
    left = maximum_bytes
    while left > 0 and (part := os.pread(file, min(left, 1 << 24), at)):
        parts.append(part)
        at += len(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _summarised(rank: int, parsed: Sequence[Any]) -> ParsedParts:
    from stallwatch.bundle.rank_summary import shorten, summarise  # a small incident does not need the diagnosis here

    def shortened(value: Any) -> Any:
        if isinstance(value, Guess):
            return Guess(value.kind, shortened(value.value))
        return shorten(value) if isinstance(value, RecorderTable) else value

    tables = [table for table in map(_table, parsed) if table is not None]
    if not tables:
        return ParsedParts(tuple(_encoded(value) for value in parsed))
    summary = msgpack_of(summarise(rank, tables))
    return ParsedParts(tuple(_encoded(shortened(value)) for value in parsed), msgspec.Raw(summary))


def _table(value: Any) -> RecorderTable | None:
    value = value.value if isinstance(value, Guess) else value
    return value if isinstance(value, RecorderTable) else None


def _encoded(value: Any) -> PartAnswer:
    if isinstance(value, PartAnswer):
        return value
    try:
        return PartAnswer(msgspec.Raw(msgpack_of(value)))
    except (OverflowError, ValueError) as error:
        return PartAnswer(problem=f"it holds what no such file does ({error})")
