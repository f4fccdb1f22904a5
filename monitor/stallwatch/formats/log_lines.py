"""A log's bytes as lines: in whatever encoding it was redirected, as whoever split or overwrote them meant them."""

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import Final

MAXIMUM_LINE: Final = 4_096
_LOOK_BYTES: Final = 4_096
# A container's runtime splits what is long: all parts but the last are marked P.
_PART: Final = re.compile(r"(?P<head>\d\S+ (?P<stream>std(?:out|err)) )(?P<mark>[PF])(?P<text> .*|$)", re.DOTALL)
_MARK_WITHIN: Final = 64
_MOST_PARTS_TEXT: Final = 4 * MAXIMUM_LINE
_LONGEST_PREFIX: Final = 120


def encoding_of(data: bytes) -> str | None:
    """Given the first bytes of a file, return the encoding of two bytes a character that it has (PowerShell's ">"
    writes it); None where it has none."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    look = data[: _LOOK_BYTES & ~1]
    even, odd = look[::2].count(0), look[1::2].count(0)
    if len(look) >= 8 and min(even, odd) == 0 and 4 * max(even, odd) > len(look):
        return "utf-16-le" if odd else "utf-16-be"
    return None


def as_utf8(data: bytes) -> bytes:
    """Given a text file's bytes, return them in UTF-8 where it has two bytes a character, else as they are."""
    encoding = encoding_of(data)
    return data.decode(encoding, "replace").encode() if encoding else data


def whole_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Given the lines of a file, return what was written as one line, with the number of its first: parts of split ones
    joined, and of progress bars that overwrote each other the last, with what stands before the first."""
    parts: dict[str, tuple[int, str]] = {}
    for number, raw in enumerate(lines, 1):
        text, first = raw, number
        within = raw[:_MARK_WITHIN]
        if (" P" in within or parts) and (part := _PART.match(raw)):
            first, before = parts.pop(part["stream"], (number, ""))
            text = before + part["text"][1:] if before else f"{part['head']}F{part['text']}"
            if part["mark"] == "P" and len(text) < _MOST_PARTS_TEXT:
                parts[part["stream"]] = first, text.rstrip("\r")
                continue
        if len(text) > MAXIMUM_LINE:
            bars = text.rstrip("\r").split("\r")
            text = "\r".join((bars[0][:_LONGEST_PREFIX], bars[-1])) if len(bars) > 1 else text
        yield first, text[:MAXIMUM_LINE]
    for first, text in sorted(parts.values()):
        yield first, text[:MAXIMUM_LINE]
