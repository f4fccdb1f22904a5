"""Logs as they lie around: of any length, packed or not. Reads an open descriptor in the child that may be lost."""

import bz2
import codecs
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from typing import Final

from stallwatch.formats import training_log
from stallwatch.formats.log_lines import encoding_of
from stallwatch.formats.log_pieces import WHOLE_BYTES, parse_pieces
from stallwatch.formats.log_prefix import is_json_line
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.log_event import LogTail

# First bytes of packed files, and who unpacks them.
_PACKED: Final[tuple[tuple[bytes, Callable[[io.BufferedReader], gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]], ...]] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\0", lzma.LZMAFile),
)
_ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"
_LOOK_BYTES: Final = 4096


def parse_log(descriptor: int) -> LogTail | None:
    """Given the descriptor of a file, return what it tells if it is a packed or a long log; None: it is short, or it is
    no text. Raise Unreadable or OSError."""
    first = os.pread(descriptor, _LOOK_BYTES, 0)
    unpack = next((by for magic, by in _PACKED if first.startswith(magic)), None)
    if first.startswith(_ZSTANDARD):
        raise Unreadable("it is packed with zstd: unpack it first (zstd -d)")
    binary = b"\0" in first and encoding_of(first) is None
    if unpack is None and (os.fstat(descriptor).st_size <= WHOLE_BYTES or binary or _is_dump(first)):
        return None
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        stream = unpack(file) if unpack else file
        read = _reader(stream)
        head = _whole(read, WHOLE_BYTES + 1)
        is_long = len(head) > WHOLE_BYTES
        if encoding := encoding_of(head[:_LOOK_BYTES]):
            decoder = codecs.getincrementaldecoder(encoding)("replace")
            head, narrow = decoder.decode(head).encode(), read
            read = lambda size: decoder.decode(narrow(size)).encode()  # noqa: E731
        if unpack and b"\0" in head[:_LOOK_BYTES]:
            raise Unreadable("it is packed, and no text: unpack it first")
        return parse_pieces(read, head) if is_long else training_log.parse(head)


def _is_dump(first: bytes) -> bool:
    line = first.partition(b"\n")[0].decode("utf-8", "replace")
    # A trainer's log may begin with a dictionary of Python's, whose names stand in single quotes.
    is_json = first.lstrip(b"{ \r\n\t")[:1] == b'"' and not is_json_line(line)
    return first[:1] == b"\x80" or (first[:1] == b"{" and is_json)


def _reader(stream: io.BufferedReader | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile) -> Callable[[int], bytes]:
    """Reads on; of a packed file that is cut off or damaged, what is before."""

    def read(size: int) -> bytes:
        try:
            return stream.read1(size)
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
            return b""

    return read


def _whole(read: Callable[[int], bytes], size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
