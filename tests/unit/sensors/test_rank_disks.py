import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stallwatch.sensors.rank_disks import RankDisks, look_at
from tests.builders.clock import FakeClock


def test_the_folder_of_the_largest_file_open_for_writing_names_the_disk(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with (tmp_path / "log.txt").open("w"), (tmp_path / "checkpoints/7.pt").open("wb") as checkpoint:
        checkpoint.truncate(1 << 20)
        disks = look_at(os.getpid(), {}, 7)
    disk = disks[tmp_path.stat().st_dev]
    assert (disk.path, disk.largest_file_bytes, disk.at_ns) == (str(tmp_path / "checkpoints"), 1 << 20, 7)
    assert 0 < disk.free_bytes <= disk.size_bytes


def test_a_disk_is_remembered_when_its_file_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "7.pt").open("wb") as checkpoint:
        checkpoint.truncate(1 << 20)
        before = look_at(os.getpid(), {}, 1)
    later = look_at(os.getpid(), before, 2)[tmp_path.stat().st_dev]
    assert (later.path, later.largest_file_bytes, later.at_ns) == (str(tmp_path), 1 << 20, 2)


READS = "import sys; file = open(sys.argv[1], 'rb'); print(flush=True); sys.stdin.read()"


def test_what_is_only_read_names_no_folder(tmp_path: Path) -> None:
    """A process of its own: a test's has files open that are its runner's."""
    (tmp_path / "shard.bin").write_bytes(bytes(1 << 20))
    command = [sys.executable, "-c", READS, str(tmp_path / "shard.bin")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        disks = look_at(reader.pid, {}, 1)
        reader.communicate()
    assert disks
    assert all(disk.largest_file_bytes == 0 for disk in disks.values())


def test_a_process_that_is_gone_or_closed_to_us_has_no_known_disk(tmp_path: Path) -> None:
    assert look_at(1, {}, 1, str(tmp_path)) == {}


def test_a_dead_file_server_holds_no_reader_and_is_said_once_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), threading.Semaphore(0)

    def dead(path: str) -> os.statvfs_result:
        asked.release()
        answers.wait(30)
        raise OSError

    clock = FakeClock()
    disks = RankDisks("/proc", clock.monotonic_ns)
    monkeypatch.setattr(os, "statvfs", dead)
    disks.look([((os.getpid(), 1), 1000)])
    assert asked.acquire(timeout=30)
    clock.now_ns = 60 * 10**9
    disks.look([((os.getpid(), 1), 1000)])
    assert disks.problem() == "a file system of a rank has not answered for 60 s"
    assert disks.of(os.getpid(), 1) == ()
    assert not asked.acquire(blocking=False), "nobody is asked again meanwhile"
    clock.now_ns = 120 * 10**9
    disks.look([((os.getpid(), 1), 1000), ((os.getpid(), 2), 1001)])
    assert asked.acquire(timeout=30), "another user's ranks are looked at all the same"
    answers.set()
