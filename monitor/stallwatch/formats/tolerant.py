"""Reading a value out of decoded JSON that other tools wrote: absent and ill-typed are both None, never zero."""

from typing import Any

import msgspec

from stallwatch.formats.unreadable import Unreadable

_INT64 = 2**63


def decode_json(data: bytes) -> Any:
    """Given bytes, return what the JSON says. Raise Unreadable, also for text that another program cut off."""
    if not data.strip():
        raise Unreadable("it is empty")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"it is not JSON ({error})") from error


def mapping(value: object) -> dict[str, Any]:
    return value if type(value) is dict else {}


def items(value: object) -> list[Any]:
    return value if type(value) is list else []


def integer(value: object) -> int | None:
    if type(value) is int and -_INT64 <= value < _INT64:
        return value
    if type(value) is str:
        try:
            return integer(int(value, 0)) if len(value) < 32 else None
        except ValueError:
            return None
    return int(value) if type(value) is float and value.is_integer() and abs(value) < _INT64 else None


def number(value: object) -> float | None:
    return float(value) if type(value) in (int, float) and value == value else None  # type: ignore[arg-type]


def text(value: object) -> str | None:
    return value if type(value) is str else None


def boolean(value: object) -> bool | None:
    return value if type(value) is bool else None
