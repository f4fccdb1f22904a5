"""The child that parses what jobs wrote: it may be starved, killed or lost at any file, and nothing else is.

It reads open descriptors only, writes no file, and answers on its standard input, a socket. `workers` starts it.
"""

import gc
import os
import resource
import socket
from typing import Final

import msgspec

from stallwatch.encoding import Unpacker, msgpack_of, pack

MAXIMUM_PARTS: Final = 200  # descriptors in one message; the kernel takes 253
READY: Final = b""  # no answer is empty
_CPU_SECONDS_PER_FILE: Final = 60


class OpenFile(msgspec.Struct):
    """One open file, whose descriptor travels with the message."""

    kind: str
    source: str
    look: int


class ParseTask(msgspec.Struct):
    """What a parsing child is asked: parts of files, whole or of one rank's recorders."""

    parts: tuple[OpenFile, ...]
    rank: int | None = None  # all parts are recorders of this rank: reduce them to a summary, and shorten them


class PartAnswer(msgspec.Struct):
    """`value` is the kind's result as msgpack; `problem` is a clause instead, when the file is unusable."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    problem: str = ""


class ParsedParts(msgspec.Struct):
    """What a parsing child answers: each part's value or problem."""

    parts: tuple[PartAnswer, ...]
    summary: msgspec.Raw = msgspec.Raw(b"\xc0")
    spent: bool = False  # the child ran out of memory and ends: start another


def main(address_space_bytes: int, *, ahead: bool = False) -> int:
    """Say that we have started (READY), then answer jobs until the other end closes. `ahead`: nobody waits yet, and
    what parses any kind of file is imported first."""
    connection = socket.socket(fileno=0)
    resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Parsed data holds no cycles, and the collector would walk it again and again.
    gc.disable()
    from stallwatch.bundle.parsing import answer, import_parsers  # while the parent still looks for files

    if ahead:
        import_parsers()

    connection.sendall(pack(READY))
    while (received := _receive(connection)) is not None:
        job, files = received
        _allow_cpu(len(files))
        try:
            said = answer(job, files)
        finally:
            for file in files:
                os.close(file)
        connection.sendall(pack(msgpack_of(said)))
        if said.spent:
            return 1
    return 0


def _receive(connection: socket.socket) -> tuple[ParseTask, list[int]] | None:
    data, files, _, _ = socket.recv_fds(connection, 1 << 16, MAXIMUM_PARTS)
    unpacker = Unpacker()
    while data:
        for message in unpacker.feed(data):  # one job at a time is given
            return msgspec.msgpack.decode(message, type=ParseTask), list(files)
        data = connection.recv(1 << 16)
    return None


def _allow_cpu(files: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + _CPU_SECONDS_PER_FILE * files
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
