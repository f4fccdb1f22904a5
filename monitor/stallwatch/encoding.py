"""Values as bytes, for every process of ours.

msgspec's own `encode` ends the process where memory is short: once its buffer cannot grow it gives back a null pointer
(0.18.6 to 0.23.0: `Py_DECREF(state.output_buffer)` after a `_PyBytes_Resize` that failed; seen as the SIGSEGV of a
daemon at its limit). Into a bytearray it raises MemoryError, as everything else does.
"""

from typing import Any

import msgspec

_JSON = msgspec.json.Encoder()
_MSGPACK = msgspec.msgpack.Encoder()


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
