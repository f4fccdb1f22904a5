"""JSON that broke off, read as far as it is whole."""

import re
from typing import Any, Final

from stallwatch.formats.tolerant import decode_json
from stallwatch.formats.unreadable import Unreadable

# Possessive: a string that goes on for megabytes must not be remembered character by character.
_TOKENS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},"]', re.DOTALL)
_CLOSERS: Final = {b"{": b"}", b"[": b"]"}
_DEPTH: Final = 2  # a list, or a table, that is a value of the outermost table
_MOST_OPEN: Final = 512  # what is nested deeper than any dump is not mended


def decode(data: bytes) -> tuple[Any, bool]:
    """Given JSON, return its value and whether it broke off: then, what was complete before. Raise Unreadable."""
    try:
        return decode_json(data), False
    except Unreadable:
        whole = _whole_part(data)
        if whole is None:
            raise
    return decode_json(whole), True


def _whole_part(data: bytes) -> bytes | None:
    """Cut before the last comma between values that are not too deep, and close what is open there."""
    opened: list[bytes] = []
    end, closers = -1, b""
    for token in _TOKENS.finditer(data):
        mark = token[0]
        if mark == b'"':
            break  # a string without an end
        if mark in _CLOSERS:
            opened.append(mark)
            if len(opened) > _MOST_OPEN:
                return None
        elif mark in (b"}", b"]"):
            if not opened or _CLOSERS[opened.pop()] != mark:
                return None  # no end that is missing, but another kind of damage
        elif mark == b"," and 0 < len(opened) <= _DEPTH:
            end, closers = token.start(), b"".join(_CLOSERS[mark] for mark in reversed(opened))
    if end < 0 or not opened:
        return None
    return data[:end] + closers
