r"""Text of the outside: names, paths and lines that a job or another program made up, which may be any bytes.

This is the one place that decides what of them goes on: text that can be encoded, holds no control character, and shows
itself as it is. What cannot be shown is written as an escape ("\x1b"), so that two names that differ stay two names.
Every reader of foreign bytes uses it at its edge; behind the edge text is text.
"""

import re
from collections.abc import Callable
from typing import Any, Final

# C0 and C1 (terminals obey both), DEL; what turns or hides text (bidirectional marks, embeddings, overrides, isolates,
# zero-width characters, tags: "Trojan Source", CVE-2021-42574); separators of lines and paragraphs; lone surrogates.
_UNSHOWN: Final = (
    "\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_IN_NAMES: Final = re.compile(f"[{_UNSHOWN}]")
_IN_LINES: Final = re.compile(f"(?!\t)[{_UNSHOWN}]")
_IN_TEXT: Final = re.compile(f"(?![\t\n])[{_UNSHOWN}]")
_IN_PATHS: Final = re.compile(rf"[\\{_UNSHOWN}]")
_UNSAFE_IN_FILES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-f]{2})|(\\))")


def name_of(name: str | bytes) -> str:
    """Given a name (of a job, a host, a process, a file that is not opened again), return it as it may be shown."""
    text = name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
    return text if text.isprintable() else _IN_NAMES.sub(_escaped, text)


def file_name_of(name: str, limit: int) -> str:
    """Given a name, return what of it may be the name of a file that is not hidden, of at most `limit` characters; ""
    where nothing may."""
    return _UNSAFE_IN_FILES.sub("_", name).lstrip(".")[:limit]


def line_of(line: str | bytes) -> str:
    """As `name_of`, for a line of a log or of source code: tabs stay."""
    text = line if isinstance(line, str) else line.decode("utf-8", "surrogateescape")
    return text if text.isprintable() else _IN_LINES.sub(_escaped, text)


def text_of(text: str | bytes) -> str:
    """As `name_of`, for text of several lines."""
    decoded = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
    return decoded if decoded.isprintable() else _IN_TEXT.sub(_escaped, decoded)


def path_of(path: str | bytes) -> str:
    """As `name_of`, for a path that is opened later: `path_bytes` gives back what it was, byte by byte."""
    text = path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")
    return text if "\\" not in text and text.isprintable() else _IN_PATHS.sub(_escaped_bytes, text)


def path_bytes(text: str) -> bytes:
    """Given what `path_of` returned, return the path."""
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()) if match[1] else b"\\", text.encode())


def plain(value: Any, clean: Callable[[str], str] = text_of) -> Any:
    """Given decoded JSON, return it with every text in it cleaned, and every key as a name."""
    if type(value) is str:
        return clean(value)
    if type(value) is list:
        return [plain(item, clean) for item in value]
    if type(value) is dict:
        return {name_of(key) if type(key) is str else key: plain(item, clean) for key, item in value.items()}
    return value


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that is no UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped_bytes(match: re.Match[str]) -> str:
    if match[0] == "\\":
        return "\\\\"
    is_a_byte = 0xDC80 <= ord(match[0]) <= 0xDCFF
    return "".join(
        f"\\x{byte:02x}" for byte in match[0].encode("utf-8", "surrogateescape" if is_a_byte else "surrogatepass")
    )
