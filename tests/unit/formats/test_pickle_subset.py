"""What a dump may not do to its reader. Memory is checked by a limit in a child, since an allocation that succeeds
lazily would not show."""

import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallwatch.formats.flight_recorder import parse_table
from stallwatch.formats.pickle_subset import REFUSED, Machine
from stallwatch.formats.unreadable import Unreadable

BUNDLES = Path(__file__).parents[2] / "bundles"
REAL = (BUNDLES / "gloo-killed" / ".." / "gloo-p2p_both_recv" / "ranks" / "0" / "flight_recorder.pickle").read_bytes()


class Runs:
    """Unpickled by Python, it would leave a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import sys; sys.stallwatch_was_here = True",)


def interpret(data: bytes) -> Any:
    machine = Machine(data)
    machine.run()
    return machine.value()


def test_nothing_is_run() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(Unreadable, match="refused"):
            interpret(pickle.dumps({"entries": [Runs()]}, protocol))
    assert not hasattr(sys, "stallwatch_was_here")


def test_every_opcode_that_runs_or_fetches_something_is_refused() -> None:
    dangerous = {
        "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4",
        "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER",
    }  # fmt: skip
    for opcode in pickletools.opcodes:
        if opcode.name in dangerous:
            assert REFUSED[ord(opcode.code)] == opcode.name
            with pytest.raises(Unreadable, match="refused"):
                interpret(b"\x80\x02}]" + opcode.code.encode("latin-1") + b"os\nsystem\n" * 3 + b".")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner)
        | st.lists(inner, min_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
)


@given(plain, st.integers(0, pickle.HIGHEST_PROTOCOL))
@settings(deadline=None, max_examples=50)
def test_plain_data_reads_as_python_reads_it(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    try:
        got = interpret(data)
    except Unreadable as error:
        # Protocols below 3 write bytes as a call.
        assert "refused" in str(error)  # noqa: PT017
        assert protocol < 3
        return
    assert repr(got) == repr(value)


@given(st.data())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_mutated_dump_is_read_or_called_unreadable(data: st.DataObject) -> None:
    """No other exception, and never more rows than the file could hold."""
    bytes_ = bytearray(REAL)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(bytes_) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                bytes_[at] = data.draw(st.integers(0, 255))
            case 1:
                del bytes_[at : at + data.draw(st.integers(1, 64))]
            case _:
                start = data.draw(st.integers(0, len(bytes_) - 1))
                bytes_[at:at] = bytes_[start : start + data.draw(st.integers(1, 512))]
    try:
        table = parse_table(bytes(bytes_), "x")
    except Unreadable:
        return
    assert len(table.kind_of) // 4 <= bytes_.count(b"}")


@given(st.binary(max_size=400))
@settings(deadline=None)
def test_random_bytes_are_called_unreadable(noise: bytes) -> None:
    for head in (b"", b"\x80\x02}(X\x07\x00\x00\x00entries]("):
        try:
            parse_table(head + noise, "x")
        except Unreadable:
            pass


_MEASURED = """
import resource, sys
sys.path[:] = {path!r}
from stallwatch.formats.flight_recorder import parse_table
from stallwatch.formats.unreadable import Unreadable
data = sys.stdin.buffer.read()
resource.setrlimit(resource.RLIMIT_AS, ({limit} << 20, {limit} << 20))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
try:
    {call}
except Unreadable as error:
    print("unreadable:", error)
else:
    print("read")
"""


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


_NUMBER = text("collective_seq_id") + b"K\x01"


def of_entries(*parts: bytes) -> bytes:
    """A dump whose list of entries is what `parts` push."""
    return b"\x80\x02}" + text("entries") + b"](" + b"".join(parts) + b"es."


def one_entry(*pairs: bytes) -> bytes:
    return b"}(" + text("profiling_name") + text("a") + _NUMBER + b"".join(pairs) + b"u"


def laughs() -> bytes:
    """A list of two references to a list of two references to …, 60 deep, as the frames of one entry."""
    lists = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (depth, depth, depth + 1) for depth in range(60))
    return b"\x80\x02(" + lists + b"1" + of_entries(one_entry(text("frames") + b"h\x3c"))[2:]


def shapes_shared_by_entries() -> bytes:
    shapes = b"](" + b"](K\x01e" * 16_000 + b"e" + b"q\x010"
    entry = one_entry(text("input_sizes") + b"h\x01", text("pg_id") + b"M\x01\x01")
    return b"\x80\x02" + shapes + of_entries(entry * 20_000)[2:]


def name_shared_by_entries() -> bytes:
    entry = b"}(" + text("profiling_name") + b"h\x01" + _NUMBER + text("pg_id") + b"M\x01\x01u"
    return b"\x80\x02" + text("n" * 1_000_000) + b"q\x010" + of_entries(entry * 5_000)[2:]


BOMBS = {
    "nine bytes: a memo index of 2^31": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "a huge memo index by PUT": b"Np" + b"9" * 18 + b"\n.",
    "text of 4 GB announced": b"\x80\x02X\xff\xff\xff\xffabc.",
    "text of 2^63 bytes announced": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc.",
    "a number of 2 GB announced": b"\x80\x02\x8b\xff\xff\xff\x7fabc.",
    "a frame of 2^63 bytes announced": b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f.",
    "nested very deep": b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".",
    "a deeply nested tuple as a key": b"\x80\x02}N" + b"\x85" * 300_000 + b"Ns.",
    "marks within marks": b"\x80\x02" + b"(" * 300_000 + b".",
    "laughs: 60 doublings by memo": laughs(),
    "one list of shapes in every entry": shapes_shared_by_entries(),
    "one entry again and again": of_entries(one_entry() + b"q\x01" + b"h\x01" * 200_000),
    "a long name in every entry": name_shared_by_entries(),
    "JSON nested very deep": b'{"entries":' + b"[" * 300_000,
}


def measured(call: str, data: bytes) -> subprocess.CompletedProcess[str]:
    # 400 MiB of addresses: interpreter and imports take some 60, a file of a few MB a small multiple of itself.
    program = _MEASURED.format(path=[path for path in sys.path if path], limit=400, call=call)
    arguments = [sys.executable, "-I", "-S", "-c", program]
    run = subprocess.run(arguments, input=data, capture_output=True, timeout=60)
    return subprocess.CompletedProcess(arguments, run.returncode, run.stdout.decode(), run.stderr.decode())


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_takes_no_more_than_its_bound(bomb: bytes) -> None:
    run = measured('parse_table(data, "x")', bomb)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(("unreadable: ", "read"))


def test_the_limit_of_this_test_would_catch_pythons_own_unpickler() -> None:
    run = measured("__import__('pickle').loads(data)", BOMBS["nine bytes: a memo index of 2^31"])
    assert run.returncode != 0


def test_entries_that_share_what_is_harmless_are_read() -> None:
    table = parse_table(laughs(), "x")
    assert len(table.kind_of) // 4 == 1
