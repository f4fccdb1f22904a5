"""What kinds of file an incident holds, and the parser of each: one table for the child that parses and the reader.

A parser is imported when the first file of its kind is parsed: the reader needs none of them, and a sample's child one.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stallwatch.bundle import description
from stallwatch.bundle.bounds import LONGEST_TIMELINE_BYTES
from stallwatch.formats.outside_text import line_of, name_of, text_of
from stallwatch.formats.recorder_table import RecorderTable
from stallwatch.formats.tolerant import decode_json
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import (
    Attempt,
    PastedReport,
    ProcessLook,
    Profile,
    RasCommunicator,
    SourceLine,
    Stacks,
    Usage,
)
from stallwatch.model.gpu import Gpu
from stallwatch.model.hook_report import HookReport
from stallwatch.model.incident import Incident
from stallwatch.model.log_event import KernelLog, LogTail
from stallwatch.model.snapshot import Heartbeat, NodeSnapshot

if TYPE_CHECKING:
    from stallwatch.formats.entry_templates import TemplateLibrary

_MEBIBYTE: Final = 1 << 20
_LAST_NS: Final = 7_258_118_400_000_000_000  # the year 2200: no clock of a node


@lru_cache(maxsize=1)
def _library() -> "TemplateLibrary":
    """Kept by the child from dump to dump: ranks of one program write nearly equal ones."""
    from stallwatch.formats.entry_templates import TemplateLibrary

    return TemplateLibrary()


class Kind(NamedTuple):
    """How a kind of file is read, and up to which size."""

    parse: Callable[[bytes, str, int], Any]  # (data, source, look); raises Unreadable
    result: Any
    maximum_bytes: int
    tail: bool = False  # a longer file is read from its end, instead of refused
    of_log: bool = False  # it may be a log, of any length and packed


class Guess(msgspec.Struct):
    """A file's kind by its content, with its value."""

    kind: str
    value: Any


class PackedGuess(msgspec.Struct):
    """The same before its kind is known."""

    kind: str
    value: msgspec.Raw


def _guess(data: bytes, source: str, look: int) -> Guess:
    from stallwatch.bundle.guessing import guess

    return Guess(*guess(data, source, look, _library()))


def _recorder(data: bytes, source: str, look: int) -> RecorderTable:
    from stallwatch.formats import flight_recorder

    return flight_recorder.parse_table(data, source, look, _library())


def _stacks(data: bytes, source: str, look: int) -> Stacks:
    from stallwatch.formats import py_spy

    return py_spy.parse(data, source, look)


def _report(data: bytes, source: str, look: int) -> PastedReport:
    from stallwatch.formats import pasted_stacks, training_log

    return PastedReport(pasted_stacks.parse(data, source), training_log.parse(data))


def _process(data: bytes, source: str, look: int) -> ProcessLook:
    from stallwatch.formats import process

    return process.parse(data, source, look)


def _profile(data: bytes, source: str, look: int) -> Profile:
    from stallwatch.formats import py_spy_profile

    return py_spy_profile.parse(data, source, look)


def _scene(data: bytes, source: str, look: int) -> HookReport:
    from stallwatch.formats import hook_report

    return hook_report.parse(data, source, look)


def _gpus(data: bytes, source: str, look: int) -> tuple[tuple[Gpu, ...], ...]:
    from stallwatch.formats import gpus

    return gpus.parse(data)


def _ras(data: bytes, source: str, look: int) -> tuple[RasCommunicator, ...]:
    from stallwatch.formats import ras

    return ras.parse(data)


def _kernel_log(data: bytes, source: str, look: int) -> KernelLog:
    from stallwatch.formats import kernel_log

    return kernel_log.parse(data)


def _log(data: bytes, source: str, look: int) -> LogTail:
    from stallwatch.formats import training_log

    return training_log.parse(data)


def _structure(result: Any, clean: Callable[[str], str] = name_of) -> Callable[[bytes, str, int], Any]:
    def parse(data: bytes, source: str, look: int) -> Any:
        try:
            return decode_json(data, result, strict=False, clean=clean)
        except Unreadable as error:
            raise Unreadable(f"it does not have the form that stallwatch writes: {error}") from error

    return parse


def _last_snapshot(data: bytes, source: str, look: int) -> NodeSnapshot:
    for line in reversed(data.splitlines()):
        try:
            snapshot: NodeSnapshot = decode_json(line, NodeSnapshot, clean=name_of)
        except Unreadable:
            continue  # the newest line may be half-written, the oldest half-read
        return snapshot
    raise Unreadable("no line of it is a snapshot")


class Snapshots(msgspec.Struct):
    """A whole timeline, oldest first."""

    snapshots: tuple[NodeSnapshot, ...]
    unreadable: int = 0  # lines that are no snapshot, or of a time before the line above them


def _snapshots(data: bytes, source: str, look: int) -> Snapshots:
    kept: list[NodeSnapshot] = []
    unreadable = 0
    for line in data.splitlines():
        try:
            snapshot: NodeSnapshot = decode_json(line, NodeSnapshot, clean=name_of)
        except Unreadable:
            unreadable += bool(line.strip())
            continue
        in_order = not kept or kept[-1].at_ns < snapshot.at_ns
        if in_order and 0 <= snapshot.at_ns < _LAST_NS and 0 <= snapshot.wall_ns < _LAST_NS:
            kept.append(snapshot)
        else:
            unreadable += 1
    if not kept:
        raise Unreadable("no line of it is a snapshot")
    return Snapshots(tuple(kept), unreadable)


# A ring of 20,000 entries with Python and C++ stacks is about 120 MiB.
KINDS: Final[dict[str, Kind]] = {
    "recorder": Kind(_recorder, RecorderTable, 256 * _MEBIBYTE),
    "stacks": Kind(_stacks, Stacks, 16 * _MEBIBYTE),
    "process": Kind(_process, ProcessLook, 4 * _MEBIBYTE),
    "profile": Kind(_profile, Profile, 4 * _MEBIBYTE),
    "usage": Kind(_structure(Usage), Usage, _MEBIBYTE),
    "heartbeat": Kind(_structure(Heartbeat), Heartbeat, _MEBIBYTE),
    "scene": Kind(_scene, HookReport, _MEBIBYTE),
    "attempts": Kind(_structure(tuple[Attempt, ...], text_of), tuple[Attempt, ...], 4 * _MEBIBYTE),
    "sources": Kind(_structure(tuple[SourceLine, ...], line_of), tuple[SourceLine, ...], 4 * _MEBIBYTE),
    "description": Kind(lambda data, source, look: description.parse(data), description.Description, 16 * _MEBIBYTE),
    "gpus": Kind(_gpus, tuple[tuple[Gpu, ...], ...], 16 * _MEBIBYTE),
    "ras": Kind(_ras, tuple[RasCommunicator, ...], 64 * _MEBIBYTE),
    "kernel_log": Kind(_kernel_log, KernelLog, 4 * _MEBIBYTE, tail=True),
    "log": Kind(_log, LogTail, 8 * _MEBIBYTE, tail=True, of_log=True),
    "report": Kind(_report, PastedReport, 16 * _MEBIBYTE),
    "guess": Kind(_guess, PackedGuess, 256 * _MEBIBYTE, of_log=True),
    "timeline": Kind(_last_snapshot, NodeSnapshot, 8 * _MEBIBYTE, tail=True),
    # What a replay reads beside (bundle.past).
    "snapshots": Kind(_snapshots, Snapshots, LONGEST_TIMELINE_BYTES, tail=True),
    "configuration": Kind(_structure(dict[str, dict[str, Any]]), dict[str, dict[str, Any]], _MEBIBYTE),
    "incident": Kind(_structure(Incident, text_of), Incident, 64 * _MEBIBYTE),
}
