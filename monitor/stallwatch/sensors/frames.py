"""Messages between the panel and a sensor's child: length, then msgpack. One definition for both ends."""

import struct
from collections.abc import Iterator

import msgspec

_LENGTH = struct.Struct("<I")
# A node of 16 ranks with 128 children each takes about 200 KB.
LIMIT_BYTES = 64 << 20


NEWS = 0  # answers no request: something happened, ask soon


class Answer(msgspec.Struct, frozen=True):
    """What a child says to request `request`: a value, or why there is none."""

    request: int
    duration_seconds: float
    value: bytes = b""  # msgpack of the sensor's own type; empty: there is none
    error: str = ""
    absent: bool = False  # the node does not have it; the child ends after saying so


def pack(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


class Unpacker:
    """Turns a stream of bytes into whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield every message that is whole now. Raise ValueError on a length that no child sends."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > LIMIT_BYTES:
                raise ValueError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            yield bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
