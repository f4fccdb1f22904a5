"""Messages over a stream: length, then msgpack. One definition for every process of ours that talks to another."""

import struct
from collections.abc import Iterator
from typing import BinaryIO

_LENGTH = struct.Struct("<I")
# A node of 16 ranks with 128 children each takes about 200 KB; larger files travel in pieces.
LIMIT_BYTES = 64 << 20


def pack(message: bytes) -> bytes:
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


def read_message(stream: BinaryIO) -> bytes | None:
    """Return the next message of a stream that may be waited for; None at its end."""
    head = stream.read(_LENGTH.size)
    return stream.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else None
