"""What a file is whose name does not say it."""

from collections.abc import Callable
from typing import Any, Final

from stallwatch.formats import flight_recorder, gpus, log_exports, pasted_stacks, py_spy, ras, stack_texts, training_log
from stallwatch.formats.entry_templates import TemplateLibrary
from stallwatch.formats.log_lines import as_utf8, encoding_of
from stallwatch.formats.log_prefix import is_json_line
from stallwatch.formats.tolerant import decode_json
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import PastedReport

_PICKLE: Final = b"\x80"
_LINE_BYTES: Final = 65_536
_LOOK_BYTES: Final = 4_096
# torch's handler of signals in a loader's worker writes its text with the byte that ends it in C (DataLoader.cpp).
_FEW_NULS: Final = 2
_BYTES_A_NUL: Final = 64
_OF_TEXT: Final = bytes(range(7, 14)) + b"\0\x1b" + bytes(range(32, 256))
_OF_A_JOB: Final = (b"ProcessGroup", b"Traceback (most", b"NCCL WARN")  # in a log that somebody pasted RAS' report into


def guess(data: bytes, source: str, look: int, library: TemplateLibrary) -> tuple[str, Any]:
    """Return the kind and what the file says. Raise Unreadable."""
    if encoding_of(data) is None:
        data = data.strip(b"\0")  # a log that was cut while its writer went on begins with a hole
    start = data.lstrip()[:1]
    if not start:
        raise Unreadable("it is empty")
    if data[:1] == _PICKLE:
        return "recorder", flight_recorder.parse_table(data, source, look, library)
    if start in b"{[" and (parse := _json_parser(data)) is not None:
        kind, read = parse
        return kind, read(data, source, look)
    data = as_utf8(data)
    if _is_binary(data[:_LOOK_BYTES]):
        raise Unreadable("it is neither a dump nor a log")
    if b"Job summary" in data and b"Communicators" in data and not any(mark in data for mark in _OF_A_JOB):
        return "ras", ras.parse_text(data)
    if stacks := pasted_stacks.parse(data, source):
        return "report", PastedReport(stacks, training_log.parse(data))
    if stack_texts.is_stacks(data):
        return "stacks", stack_texts.parse(data, source, look)
    return "log", training_log.parse(data)


def _is_binary(look: bytes) -> bool:
    """Whether a file's first bytes are no text, which has a NUL now and then, and no other byte that prints nothing."""
    nuls = look.count(0)
    return nuls > _FEW_NULS + len(look) // _BYTES_A_NUL or (nuls > 0 and bool(look.translate(None, _OF_TEXT)))


def _is_of_lines(data: bytes) -> bool:
    """Whether text that begins like JSON is a log: a trainer's, that prints a dictionary of Python's or an object a
    line, or one whose lines begin with a mark in brackets."""
    if data[:1] != b"{":
        return True
    if data.lstrip(b"{ \r\n\t")[:1] != b'"':
        return True
    line, newline, _ = data[:_LINE_BYTES].partition(b"\n")
    try:
        decode_json(line)
    except Unreadable:
        return False
    return bool(newline)


def _json_parser(data: bytes) -> tuple[str, Callable[[bytes, str, int], Any]] | None:
    """None when it is text that only begins like JSON, as a log line "[rank0]: …" does."""
    try:
        said = decode_json(data)
    except Unreadable:
        if is_json_line(data.lstrip()[:_LINE_BYTES].partition(b"\n")[0].decode("utf-8", "replace")):
            return None
        if data.lstrip()[:1] == b"{" and b'"communicators"' in data:
            return "ras", lambda data, source, look: ras.parse_json(data)
        if b'"entries"' in data[:_LINE_BYTES] or not _is_of_lines(data.lstrip()):
            raise
        return None
    if type(said) is dict and said.keys() & {"entries", "pg_config", "pg_status"}:
        return "recorder", flight_recorder.parse_table
    if type(said) is dict and "communicators" in said:
        return "ras", lambda data, source, look: ras.parse_json(data)
    if type(said) is list and said and type(said[0]) is dict and "frames" in said[0]:
        return "stacks", py_spy.parse
    if type(said) is list and said and type(said[0]) is list:
        return "gpus", lambda data, source, look: gpus.parse(data)
    if type(said) is dict and is_json_line(data.strip().decode("utf-8", "replace")):
        return None
    if (lines := log_exports.lines_of(said)) is not None:
        return "log", lambda data, source, look: training_log.parse("\n".join(lines).encode())
    raise Unreadable("it is JSON, but neither a dump nor stacks; not used")
