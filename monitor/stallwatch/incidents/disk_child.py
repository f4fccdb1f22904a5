"""Reads and writes the state directory for the daemon: `python -m stallwatch.incidents.disk_child` (node.disk asks).

Ends with its standard input. It may sit in the kernel for ever when the disk does.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.bundle.writer import append_to
from stallwatch.encoding import msgpack_of
from stallwatch.incidents.store import IncidentStore, Left
from stallwatch.model.incident import Incident
from stallwatch.node.atomic_file import write_atomically
from stallwatch.node.capabilities import drop_unless_root
from stallwatch.node.disk import LIMIT_BYTES, DiskAnswer, DiskCall, Failed
from stallwatch.node.framing import answer_requests, as_child

_CALL = msgspec.msgpack.Decoder(DiskCall)
_ARGUMENTS = msgspec.msgpack.Decoder(list[Any])


def _write(path: str, data: bytes) -> None:
    write_atomically(Path(path), data)


def _append(path: str, data: bytes) -> None:
    append_to(Path(path), data)


def _write_through(path: str, data: bytes) -> None:
    """So that it is still there after a crash of the node."""
    write_atomically(Path(path), data, through=True)


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


def _read_regular(path: str) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):  # what is none could be waited for
        raise OSError(errno.EINVAL, "not a regular file", path)
    return Path(path).read_bytes()


def _rename(path: str, new: str) -> None:
    os.replace(path, new)


def _prepare(directory: str) -> None:
    IncidentStore(Path(directory)).prepare()


def _discard(directory: str, incident_id: str) -> None:
    IncidentStore(Path(directory)).discard(incident_id)


def _take_in(directory: str, bundle: str) -> None:
    IncidentStore(Path(directory)).take_in(Path(bundle))


def _take_in_all(directory: str, spare: str) -> tuple[str, ...]:
    return IncidentStore(Path(directory)).take_in_all(Path(spare))


def _retain(directory: str, keep_bytes: int, oldest_wall_ns: int, keep: Collection[str]) -> tuple[str, ...]:
    return IncidentStore(Path(directory)).retain(keep_bytes, oldest_wall_ns, keep)


def _load(directory: str, incident_id: str) -> Incident | None:
    return IncidentStore(Path(directory)).load(incident_id)


def _newest(directory: str, limit: int) -> tuple[Incident, ...]:
    return IncidentStore(Path(directory)).newest(limit)


def _left(directory: str, past: int) -> Left:
    return IncidentStore(Path(directory)).left(past)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "write": _write,
    "write_through": _write_through,
    "append": _append,
    "read": _read,
    "read_regular": _read_regular,
    "rename": _rename,
    "prepare": _prepare,
    "discard": _discard,
    "take_in": _take_in,
    "take_in_all": _take_in_all,
    "retain": _retain,
    "load": _load,
    "newest": _newest,
    "left": _left,
}


def answer_to(body: bytes) -> DiskAnswer:
    """Do what a request asks of the disk; an error is an answer."""
    call = _CALL.decode(body)
    try:
        value = _FUNCTIONS[call.name](*_ARGUMENTS.decode(call.arguments))
    except OSError as error:
        return DiskAnswer(failed=Failed(error.errno or 5, os.fsdecode(error.filename or "")))
    except Exception as error:  # noqa: BLE001 - this child's guard: what a call raises is its answer
        return DiskAnswer(problem=f"{type(error).__name__}: {error}")
    return DiskAnswer(msgspec.Raw(msgpack_of(value)))


def main() -> None:
    """Answer requests until standard input ends."""
    drop_unless_root()
    answer_requests(lambda request: msgpack_of(answer_to(request)), limit_bytes=LIMIT_BYTES)


if __name__ == "__main__":
    as_child(main)
