"""Values as bytes, and messages over a stream (length, then msgpack), for every process of ours.

msgspec's own `encode` ends the process where memory is short: once its buffer cannot grow it gives back a null pointer
(0.18.6 to 0.23.0: `Py_DECREF(state.output_buffer)` after a `_PyBytes_Resize` that failed; seen as the SIGSEGV of a
daemon at its limit). Into a bytearray it raises MemoryError, as everything else does.
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

_JSON = msgspec.json.Encoder()
_MSGPACK = msgspec.msgpack.Encoder()
_LENGTH = struct.Struct("<I")
# A node of 16 ranks with 128 children each takes about 200 KB; larger files travel in pieces.
LIMIT_BYTES = 64 << 20


def json_of(value: Any) -> bytes:
    """Compact JSON. Raise as msgspec does: TypeError, UnicodeEncodeError, OverflowError."""
    buffer = bytearray()
    _JSON.encode_into(value, buffer)
    return bytes(buffer)


def msgpack_of(value: Any) -> bytes:
    """MessagePack. Raise as msgspec does: TypeError, UnicodeEncodeError, OverflowError."""
    buffer = bytearray()
    _MSGPACK.encode_into(value, buffer)
    return bytes(buffer)


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
