import pytest

from stallwatch.node.frames import LIMIT_BYTES, Unpacker, pack


def test_messages_come_whole_however_they_are_cut() -> None:
    stream = pack(b"first") + pack(b"") + pack(b"second" * 100)
    unpacker = Unpacker()
    got = [message for at in range(0, len(stream), 7) for message in unpacker.feed(stream[at : at + 7])]
    assert got == [b"first", b"", b"second" * 100]


def test_length_that_no_child_sends_is_refused() -> None:
    with pytest.raises(ValueError, match="a message of"):
        list(Unpacker().feed((LIMIT_BYTES + 1).to_bytes(4, "little")))
