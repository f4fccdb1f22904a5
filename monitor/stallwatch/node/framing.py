"""Messages over a stream: length, then msgpack. One definition for every process of ours that talks to another, and the
child's half of such talk."""

import os
import select
import struct
import sys
from collections.abc import Callable, Iterator

from stallwatch.node.free_lists import FreeLists

_LENGTH = struct.Struct("<I")
# A node of 16 ranks with 128 children each takes about 200 KB; larger files travel in pieces.
LIMIT_BYTES = 64 << 20


def pack(message: bytes) -> bytes:
    """A message with its length before it."""
    return _LENGTH.pack(len(message)) + message


class Unpacker:
    """Turns a stream of bytes into whole messages."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield every message that is whole now. Raise ValueError on a length that nobody sends."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._limit_bytes:
                raise ValueError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]  # first: who takes one message leaves the rest for the next time
            yield message


def answer_requests(
    answer: Callable[[bytes], bytes], idle_seconds: float | None = None, limit_bytes: int = LIMIT_BYTES
) -> None:
    """What a child of node.worker does: answer each request on standard input, on standard output, until their end, or
    until none has come for `idle_seconds`."""
    requests, answers = sys.stdin.fileno(), sys.stdout.fileno()
    unpacker, free_lists = Unpacker(limit_bytes), FreeLists()
    while select.select([requests], [], [], idle_seconds)[0]:
        data = os.read(requests, 1 << 18)
        if not data:
            return
        for request in unpacker.feed(data):
            write(answers, pack(answer(request)))
        free_lists.give_back()


def write(descriptor: int, data: bytes) -> None:
    """Write all of it. Raise OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def as_child(main: Callable[[], None]) -> None:
    """Run a child of ours; where its parent has gone meanwhile, a traceback would tell nobody anything."""
    try:
        main()
    except (ConnectionError, KeyboardInterrupt):
        os._exit(0)
