"""Reading a value out of decoded JSON that other tools wrote: absent and ill-typed are both None, never zero."""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from stallwatch.formats.outside_text import name_of, plain, text_of
from stallwatch.formats.unreadable import Unreadable

_INT64 = 2**63
# What msgspec raises on bytes that are no JSON: its own error is not the base of the other two.
NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
# Escapes that stand for control characters or surrogates, and bytes of characters that are not shown (outside_text).
_TO_CLEAN: Final = re.compile(
    rb"\\(?:u(?:00[0189]|00[7aA][fFdD]|06|18|20|[fF][eEfF]|[dD][bB])|[bfnr])|[\x7f]|\xc2[\x80-\x9f\xad]|\xd8\x9c|\xe1\xa0\x8e"
    rb"|\xe2(?:\x80[\x8b-\x8f\xa8-\xae]|\x81[\xa0-\xaf])|\xef\xbb\xbf|\xef\xbf[\xb9-\xbb]|\xf3\xa0[\x80\x81]"
)
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def decode_json(data: bytes, type: Any = Any, *, strict: bool = True, clean: Callable[[str], str] = text_of) -> Any:
    """Given bytes, return what the JSON says, its text cleaned (outside_text). Lone surrogates and bytes that are no
    UTF-8, which other writers leave in it, are replaced. Raise Unreadable, also for text that was cut off."""
    if not data.strip():
        raise Unreadable("it is empty")
    try:
        try:
            return _decoded(data, type, strict, clean)
        except (msgspec.ValidationError, RecursionError):
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            repaired = _repaired(data)
            if repaired == data:
                raise
            return _decoded(repaired, type, strict, clean)
    except NOT_JSON as error:
        raise Unreadable(f"it is not JSON ({name_of(str(error))})") from error


def _decoded(data: bytes, type: Any, strict: bool, clean: Callable[[str], str]) -> Any:
    # Of plain ASCII two searches for a byte tell, which took a tenth of the pattern's time on a dump of 900 KB.
    may_need = not data.isascii() or b"\\" in data or b"\x7f" in data
    if not may_need or _TO_CLEAN.search(data) is None:
        return msgspec.json.decode(data, type=type, strict=strict)
    said = plain(msgspec.json.decode(data), clean)
    return said if type is Any else msgspec.convert(said, type, strict=strict, str_keys=True)


def _repaired(data: bytes) -> bytes:
    """JSON with U+FFFD for what cannot be text."""
    text = data.decode("utf-8", "replace").encode("utf-8")
    return _ESCAPE.sub(lambda match: b"\\ufffd" if match["lone"] else match[0], text)


def mapping(value: object) -> dict[str, Any]:
    """The value if it is a dict, else an empty one."""
    return value if type(value) is dict else {}


def items(value: object) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if type(value) is list else []


def integer(value: object) -> int | None:
    """The value as an integer of 64 bits; None if it is none."""
    if type(value) is int and -_INT64 <= value < _INT64:
        return value
    if type(value) is str:
        try:
            return integer(int(value, 0)) if len(value) < 32 else None
        except ValueError:
            return None
    return int(value) if type(value) is float and value.is_integer() and abs(value) < _INT64 else None


def number(value: object) -> float | None:
    """The value as a number; None if it is none."""
    if type(value) is int:
        return float(value) if -_INT64 <= value < _INT64 else None
    return value if type(value) is float and value == value else None


def text(value: object) -> str | None:
    """A name: of one line, whatever it holds."""
    return name_of(value) if type(value) is str else None


def lines(value: object) -> str | None:
    """The value as text that may have lines; None if it is none."""
    return text_of(value) if type(value) is str else None


def boolean(value: object) -> bool | None:
    """The value if it is a truth value; else None."""
    return value if type(value) is bool else None
