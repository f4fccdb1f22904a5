"""The child that parses what jobs wrote: it may be starved, killed or lost at any file, and nothing else is.

It reads open descriptors only, holds no network, writes no file, and answers on one socket. Started by `workers`.
"""

import gc
import os
import resource
import socket
import struct
import sys
from typing import Any, Final

import msgspec

LENGTH: Final = struct.Struct("<I")
# Interpreter and imports take about 60 MiB of addresses; a whole 256 MiB dump and its columns fit below this.
ADDRESS_SPACE_BYTES: Final = 1536 << 20
_CPU_SECONDS_PER_FILE: Final = 60


class Job(msgspec.Struct):
    """One open file, whose descriptor travels with the message."""

    kind: str
    source: str
    look: int


class Answer(msgspec.Struct):
    """`value` is the kind's result as msgpack; `problem` is a clause instead, when the file is unusable."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    problem: str = ""
    spent: bool = False  # the child ran out of memory and ends: start another


def send(connection: socket.socket, message: Any, descriptor: int | None = None) -> None:
    body = msgspec.msgpack.encode(message)
    frame = LENGTH.pack(len(body)) + body
    if descriptor is not None:
        sent = socket.send_fds(connection, [frame], [descriptor])
        frame = frame[sent:]
    connection.sendall(frame)


def main(descriptor: int) -> int:
    """Answer jobs until the other end closes."""
    connection = socket.socket(fileno=descriptor)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Parsed data holds no cycles, and the collector would walk it again and again.
    gc.disable()
    while (received := _receive(connection)) is not None:
        job, file = received
        _allow_cpu()
        answer = _answer(job, file)
        send(connection, answer)
        if answer.spent:
            return 1
    return 0


def _receive(connection: socket.socket) -> tuple[Job, int] | None:
    head, files, _, _ = socket.recv_fds(connection, LENGTH.size, 1)
    if not head:
        return None
    while len(head) < LENGTH.size:
        head += connection.recv(LENGTH.size - len(head))
    body = connection.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL)
    return msgspec.msgpack.decode(body, type=Job), files[0]


def _allow_cpu() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + _CPU_SECONDS_PER_FILE
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _answer(job: Job, file: int) -> Answer:
    from stallwatch.bundle.kinds import KINDS  # after the limits are in force
    from stallwatch.formats.unreadable import Unreadable

    kind = KINDS[job.kind]
    try:
        data = _read(file, kind.maximum_bytes)
        return Answer(msgspec.Raw(msgspec.msgpack.encode(kind.parse(data, job.source, job.look))))
    except Unreadable as error:
        return Answer(problem=str(error))
    except OSError as error:
        return Answer(problem=f"it cannot be read: {error.strerror}")
    except MemoryError:
        return Answer(problem=f"reading it takes more than {ADDRESS_SPACE_BYTES >> 20} MiB of memory", spent=True)
    except RecursionError:
        return Answer(problem="it is nested too deeply")
    finally:
        os.close(file)


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


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
