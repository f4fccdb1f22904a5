import json

import msgspec
import pytest

from stallwatch.formats.outside_text import line_of, name_of, path_bytes, path_of, text_of
from stallwatch.formats.tolerant import decode_json
from stallwatch.formats.unreadable import Unreadable

NAMES: list[tuple[bytes | str, str]] = [
    (b"caf\xe9", r"caf\xe9"),
    ("Ünïcode 模型 😀".encode(), "Ünïcode 模型 😀"),
    (b"\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
    (b"two\nlines\r", r"two\x0alines\x0d"),
    ("rank\u202e0\u2066".encode(), r"rank\u202e0\u2066"),
    ("job\u200b".encode(), r"job\u200b"),
    (b"\xc2\x9b31m", r"\x9b31m"),  # the C1 form of ESC [
    ("\ud800", r"\ud800"),
    ("\U000e0041", r"\U000e0041"),
]


@pytest.mark.parametrize(("said", "shown"), NAMES)
def test_a_name_of_the_outside_can_be_encoded_and_shows_itself(said: bytes | str, shown: str) -> None:
    assert name_of(said) == shown
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(name_of(said))) == shown


def test_names_that_differ_stay_two_names() -> None:
    names = [said for said, _ in NAMES] + [b"caf\xe8", b"job", b"rank0"]
    assert len({name_of(name) for name in names}) == len(names)


def test_a_line_keeps_its_tabs_and_a_text_its_lines() -> None:
    assert line_of("\tx = 1\n\x1b[2J") == "\tx = 1\\x0a\\x1b[2J"
    assert text_of("\tone\ntwo\x07") == "\tone\ntwo\\x07"


@pytest.mark.parametrize(
    "path", [b"/a/caf\xe9", b"/a\\x41\\", b"/\x1b[31m\n", "/ä/\u202e".encode(), b"\\", b"\xff\\xff", b"/plain"]
)
def test_a_path_of_any_bytes_is_found_again(path: bytes) -> None:
    assert path_bytes(path_of(path)) == path
    assert path_of(path).isprintable()


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (rb'{"a": "\ud800 \ud83d\ude00 \\ud800"}', {"a": "� 😀 \\ud800"}),
        (b'{"a": "caf\xe9"}', {"a": "caf�"}),
        (rb'{"\u001b[2J": ["\u202e", "a\tb\n"]}', {r"\x1b[2J": [r"\u202e", "a\tb\n"]}),
        ('{"a": "\u2028"}'.encode(), {"a": r"\u2028"}),
    ],
)
def test_json_that_holds_what_is_no_text_is_read(data: bytes, value: object) -> None:
    assert decode_json(data) == value
    assert decode_json(data, dict[str, object]) == value


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"", b'"\\ud800', b"[1e999]"])
def test_what_is_no_json_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_json(data)
    with pytest.raises(Unreadable):
        decode_json(data, dict[str, int])


def test_every_character_that_is_not_shown_is_seen_in_json() -> None:
    for code in [*range(0x3000), *range(0xFE00, 0x10000), *range(0xE0000, 0xE0080)]:
        character = chr(code)
        if not 0xD800 <= code < 0xE000:
            for escaped in (True, False):
                said = json.dumps(f"a{character}", ensure_ascii=escaped).encode()
                assert decode_json(said) == text_of(f"a{character}"), (hex(code), said)
