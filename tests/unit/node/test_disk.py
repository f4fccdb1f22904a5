import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.node.disk import Disk, DiskChildEnded, DiskHangs
from stallwatch.outputs.spool import FarSpoolFile, Spool
from tests.builders.clock import FakeClock
from tests.unit.outputs.test_spool import message

PATIENCE = 60.0  # for a busy machine; nothing is measured with it


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(str(tmp_path), PATIENCE)
    yield made
    made.close()


@contextlib.contextmanager
def hanging(disk: Disk) -> Iterator[int]:
    """A child that gets no further, as in the hands of a dead disk."""
    assert disk.pid is not None
    os.kill(disk.pid, signal.SIGSTOP)
    try:
        yield disk.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(disk.pid, signal.SIGCONT)


def test_what_is_written_is_read(disk: Disk, tmp_path: Path) -> None:
    disk.write(tmp_path / "new" / "file", b"\x00bytes")
    assert (tmp_path / "new" / "file").read_bytes() == b"\x00bytes"
    assert msgspec.msgpack.decode(disk.call("read", str(tmp_path / "new" / "file"))) == b"\x00bytes"
    assert msgspec.msgpack.decode(disk.call("read", str(tmp_path / "none"))) is None
    assert disk.problem() == ""


def test_more_than_a_pipe_holds_is_written(disk: Disk, tmp_path: Path) -> None:
    disk.write(tmp_path / "file", bytes(5_000_000))
    assert (tmp_path / "file").stat().st_size == 5_000_000


def test_what_the_child_meets_is_raised_with_its_path(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as raised:
        disk.write(tmp_path / "folder", b"")
    assert str(tmp_path) in str(raised.value)
    disk.write(tmp_path / "file", b"goes on")


def test_a_disk_that_hangs_costs_its_deadline_once_and_is_believed_again_when_it_answers(
    disk: Disk, tmp_path: Path
) -> None:
    disk.write(tmp_path / "file", b"before")
    with hanging(disk):
        with pytest.raises(DiskHangs):
            disk.call("write", str(tmp_path / "file"), b"late", seconds=0.05)
        disk._seconds = 0.01  # from here on it is late
        assert "has not answered for" in disk.problem()
        with pytest.raises(DiskHangs, match="has not answered"):
            disk.call("write", str(tmp_path / "file"), b"lost", seconds=0.0)
        disk._seconds = PATIENCE
    while True:
        with contextlib.suppress(DiskHangs):
            disk.write(tmp_path / "other", b"after")
            break
    assert (tmp_path / "file").read_bytes() == b"late"
    assert disk.problem() == ""


def test_an_answer_that_came_late_is_noticed_without_another_call(disk: Disk, tmp_path: Path) -> None:
    disk.write(tmp_path / "file", b"before")
    with hanging(disk):
        with pytest.raises(DiskHangs):
            disk.call("write", str(tmp_path / "file"), b"late", seconds=0.0)
        disk._seconds = 0.0
        assert disk.problem()
    deadline = time.monotonic() + PATIENCE
    while disk.problem() and time.monotonic() < deadline:
        pass
    assert disk.problem() == ""
    assert (tmp_path / "file").read_bytes() == b"late"


def test_a_child_that_dies_costs_nothing_for_another_is_asked(disk: Disk, tmp_path: Path) -> None:
    disk.write(tmp_path / "file", b"1")
    assert disk.pid is not None
    os.kill(disk.pid, signal.SIGKILL)
    disk.write(tmp_path / "file", b"2")
    assert (tmp_path / "file").read_bytes() == b"2"


def test_what_must_not_be_done_twice_is_asked_once(disk: Disk, tmp_path: Path) -> None:
    disk.write(tmp_path / "file", b"1")
    assert disk.pid is not None
    os.kill(disk.pid, signal.SIGKILL)
    with pytest.raises(DiskChildEnded):
        disk.call("append", str(tmp_path / "file"), b"2")
    disk.call("append", str(tmp_path / "file"), b"3")
    assert (tmp_path / "file").read_bytes() == b"13"


def test_a_child_that_is_not_used_is_ended_and_the_next_call_has_another(tmp_path: Path) -> None:
    clock = FakeClock()
    disk = Disk(str(tmp_path), PATIENCE, monotonic=clock.seconds)
    disk.rest()
    disk.write(tmp_path / "file", b"1")
    pids = [disk.pid]
    for advance_seconds, use in ((59, disk.be_ready), (59, disk.rest), (2, disk.rest)):
        clock.advance(advance_seconds)
        disk.rest()
        use()
        pids.append(disk.pid)
    assert pids == [pids[0], pids[0], pids[0], None]
    assert pids[0] is not None
    assert msgspec.msgpack.decode(disk.call("read", str(tmp_path / "file"))) == b"1"
    disk.close()


def test_a_child_that_dies_each_time_is_an_error_of_its_own(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path), PATIENCE, (sys.executable, "-c", "pass"))
    with pytest.raises(DiskChildEnded, match="has ended"):
        disk.call("read", str(tmp_path))
    disk.close()


def test_one_that_hangs_for_a_minute_is_replaced(tmp_path: Path) -> None:
    clock = FakeClock()
    disk = Disk(str(tmp_path), PATIENCE, monotonic=clock.seconds)
    disk.write(tmp_path / "file", b"1")
    with hanging(disk) as first:
        with pytest.raises(DiskHangs):
            disk.call("write", str(tmp_path / "file"), b"2", seconds=0.0)
        clock.advance(61)
        assert "61 s" in disk.problem()
        disk.write(tmp_path / "file", b"3")
        assert disk.pid != first
    disk.close()
    assert (tmp_path / "file").read_bytes() == b"3"


def test_a_child_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path), PATIENCE, command=["/nonexistent/python"])
    with pytest.raises(OSError, match="nonexistent"):
        disk.write(tmp_path / "file", b"")


def test_it_leaves_no_process(disk: Disk, tmp_path: Path) -> None:
    disk.write(tmp_path / "file", b"")
    pid = disk.pid
    disk.close()
    assert subprocess.run(["kill", "-0", str(pid)], check=False, capture_output=True).returncode != 0


def test_a_spool_behind_it_is_kept(tmp_path: Path) -> None:
    file = FarSpoolFile(tmp_path / "state" / "slack.json", PATIENCE)
    assert file.load() == Spool()
    spool, _ = Spool().with_message(message(1), ("told",))
    file.save(spool)
    assert file.load() == spool
    (tmp_path / "state" / "slack.json").write_bytes(b"\xff")
    assert file.load() == Spool()
    assert (tmp_path / "state" / "slack.unreadable").exists()
