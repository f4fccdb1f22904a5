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
data = eval(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, ({limit} << 20, {limit} << 20))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
try:
    parse_table(data, "x")
except Unreadable as error:
    print("unreadable:", error)
else:
    print("read")
"""

_ENTRY = "b'}(X\\x0e\\x00\\x00\\x00profiling_nameX\\x01\\x00\\x00\\x00a'"
BOMBS = {
    "nine bytes: a memo index of 2^31": "b'\\x80\\x02Nr\\xff\\xff\\xff\\x7f.'",
    "a huge memo index by PUT": "b'N' + b'p' + b'9' * 18 + b'\\n.'",
    "text of 4 GB announced": "b'\\x80\\x02X\\xff\\xff\\xff\\xffabc.'",
    "text of 2^63 bytes announced": "b'\\x80\\x04\\x8d' + b'\\xff' * 7 + b'\\x7f' + b'abc.'",
    "a number of 2 GB announced": "b'\\x80\\x02\\x8b\\xff\\xff\\xff\\x7fabc.'",
    "a frame of 2^63 bytes announced": "b'\\x80\\x04\\x95' + b'\\xff' * 7 + b'\\x7f.'",
    "nested very deep": "b'\\x80\\x02' + b']' * 300_000 + b'a' * 299_999 + b'.'",
    "a deeply nested tuple as a key": "b'\\x80\\x02}N' + b'\\x85' * 300_000 + b'Ns.'",
    "marks within marks": "b'\\x80\\x02' + b'(' * 300_000 + b'.'",
    "laughs: 30 doublings by memo": (
        "b'\\x80\\x02}(X\\x07\\x00\\x00\\x00entries]q\\x01' + b''.join(b'](h%ch%ceq%c' % (i, i, i + 1) for i in range(1, 31)) + b'u.'"
    ),
    "one list of shapes in every entry": (
        "b'\\x80\\x02}(X\\x07\\x00\\x00\\x00entries](N]q\\x01(' + b'](K\\x01e' * 16000 + b'e' + "
        f"({_ENTRY} + b'X\\x0b\\x00\\x00\\x00input_sizesh\\x01X\\x05\\x00\\x00\\x00pg_idM%b' % bytes((1, 1)) + b'u') * 20000 + b'eu.'"
    ),
    "one entry again and again": (
        "b'\\x80\\x02}(X\\x07\\x00\\x00\\x00entries](' + " + _ENTRY + " + b'uq\\x01' + b'h\\x01' * 200_000 + b'eu.'"
    ),
    "a long name in every entry": (
        "b'\\x80\\x02}(X\\x07\\x00\\x00\\x00entries](X\\x40\\x42\\x0f\\x00' + b'n' * 1_000_000 + b'q\\x010' + "
        "b'}(X\\x0e\\x00\\x00\\x00profiling_nameh\\x01X\\x05\\x00\\x00\\x00pg_idM\\x01\\x01u' * 5_000 + b'eu.'"
    ),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_takes_no_more_than_its_bound(bomb: str) -> None:
    # 400 MiB of addresses: interpreter and imports take some 60, a file of a few MB a small multiple of itself.
    program = _MEASURED.format(path=[path for path in sys.path if path], limit=400)
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program, bomb], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(("unreadable: ", "read"))


def test_the_limit_of_this_test_would_catch_pythons_own_unpickler() -> None:
    program = _MEASURED.format(path=[path for path in sys.path if path], limit=400).replace(
        'parse_table(data, "x")', "__import__('pickle').loads(data)"
    )
    bomb = BOMBS["nine bytes: a memo index of 2^31"]
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program, bomb], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
