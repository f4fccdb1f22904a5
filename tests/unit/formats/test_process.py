from pathlib import Path

import msgspec
import pytest

from stallwatch.formats.process import parse
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.evidence import ChildProcess, ProcessLook, ThreadState

BUNDLES = Path(__file__).parents[2] / "bundles"


def test_capture_of_a_killed_rank() -> None:
    got = parse((BUNDLES / "gloo-killed" / "ranks" / "2" / "process.json").read_bytes(), "p")
    assert (got.state, got.exit_code, got.exit_signal) == ("Z", None, 9)


def test_what_the_daemon_writes_comes_back() -> None:
    look = ProcessLook(
        source="p",
        look=2,
        pid=7,
        state="D",
        exit_code=None,
        exit_signal=None,
        wchan="nfs_wait",
        cpu_ticks=11,
        threads=(ThreadState(7, "python", "D", 3, "nfs_wait"),),
        children=(ChildProcess(9, "S", "python", 4, reaped_ticks=70, moved_bytes=4096),),
        tracer_pid=0,
        read_bytes=1,
        write_bytes=2,
        exit_source="zombie",
        out_of_memory=False,
        at_ns=5,
        ended_ns=6,
    )
    assert parse(msgspec.json.encode(look), "p", 2) == look


def test_absent_is_unknown_and_never_zero() -> None:
    got = parse(b'{"pid": 7}', "p")
    assert (got.state, got.exit_code, got.cpu_ticks, got.read_bytes) == (None, None, None, None)


@pytest.mark.parametrize(("said", "state"), [("S (sleeping)", "S"), ("t", "t"), ("?", None), (3, None), ("", None)])
def test_state_is_one_letter(said: object, state: str | None) -> None:
    assert parse(msgspec.json.encode({"pid": 1, "state": said}), "p").state == state


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"nonsense"])
def test_what_is_no_process_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(data, "p")
