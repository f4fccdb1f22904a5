import subprocess
import sys

import pytest

from stallwatch.encoding import LIMIT_BYTES, Unpacker, pack


def test_messages_come_whole_however_they_are_cut() -> None:
    stream = pack(b"first") + pack(b"") + pack(b"second" * 100)
    unpacker = Unpacker()
    got = [message for at in range(0, len(stream), 7) for message in unpacker.feed(stream[at : at + 7])]
    assert got == [b"first", b"", b"second" * 100]


def test_length_that_no_child_sends_is_refused() -> None:
    with pytest.raises(ValueError, match="a message of"):
        list(Unpacker().feed((LIMIT_BYTES + 1).to_bytes(4, "little")))


def answered(program: str, said: bytes) -> "subprocess.CompletedProcess[bytes]":
    head = "from stallwatch.node.framing import answer_requests, as_child\n"
    return subprocess.run([sys.executable, "-c", head + program], input=said, capture_output=True, timeout=60)


def test_a_child_answers_each_request_and_ends_with_them() -> None:
    ended = answered("answer_requests(bytes.upper)", pack(b"one") + pack(b"two"))
    assert (ended.returncode, ended.stdout) == (0, pack(b"ONE") + pack(b"TWO"))


def test_a_child_that_nobody_asks_any_more_ends() -> None:
    program = "from stallwatch.node.framing import answer_requests\nanswer_requests(bytes.upper, 0.01)"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        assert child.wait(60) == 0
    finally:
        child.communicate()


def test_a_child_whose_parent_has_gone_says_nothing() -> None:
    ended = answered("def main(): raise BrokenPipeError\nas_child(main)", b"")
    assert (ended.returncode, ended.stderr) == (0, b"")
