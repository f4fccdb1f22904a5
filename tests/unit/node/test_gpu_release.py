"""Until when GPUs are to be left alone, and who has one open."""

import os
from pathlib import Path

import pytest

from stallwatch.node import gpu_release
from stallwatch.node.gpu_release import Holder, holders, release, released


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / gpu_release.FILE


def test_a_release_says_until_when_and_for_whom_and_ends_by_itself(file: Path) -> None:
    assert released(file) is None
    release(file, 900, "12:15 UTC", "anna")
    found = released(file)
    assert found is not None
    assert found.reason == "left alone until 12:15 UTC for anna; `stallwatch release-gpus --for 0` ends it"
    assert 0 < found.seconds <= 900
    begun = gpu_release._boottime()
    assert released(file, begun + 899) is not None or found.seconds < 899
    assert released(file, begun + 901) is None


def test_a_release_is_ended_before_its_time(file: Path) -> None:
    release(file, 900, "12:15", "anna")
    release(file, 0, "", "anna")
    assert released(file) is None
    release(file, 0, "", "anna")  # twice does nothing


def test_nobody_releases_them_for_longer_than_a_day(file: Path) -> None:
    release(file, 10**9, "", "anna")
    found = released(file)
    assert found is not None
    assert found.seconds <= gpu_release.LONGEST_SECONDS


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"until_boottime_seconds": 1e99, "until": "", "by": ""}'])
def test_what_says_nothing_releases_nothing(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert released(file) is None


def test_no_link_fifo_or_folder_is_read(file: Path, tmp_path: Path) -> None:
    release(tmp_path / "other", 900, "", "anna")
    file.symlink_to(tmp_path / "other")
    assert released(file) is None
    file.unlink()
    os.mkfifo(file)
    assert released(file) is None
    file.unlink()
    file.mkdir()
    assert released(file) is None
    assert released("") is None


def test_a_link_in_its_place_is_replaced_and_not_written_through(file: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file.symlink_to(victim)
    release(file, 900, "", "anna")
    assert victim.read_text() == "precious"
    assert released(file) is not None


def process(root: Path, pid: int, target: str, *words: str) -> None:
    folder = root / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd" / "3").symlink_to(target)
    (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    (folder / "comm").write_text(Path(words[0]).name + "\n")


def test_holders_are_whoever_has_a_device_open_ours_told_apart(tmp_path: Path) -> None:
    process(tmp_path, 11, "/dev/nvidia0", "/usr/bin/python3", "-P", "-m", "stallwatch.sensors.child", "gpus", "{}")
    process(tmp_path, 12, "/dev/nvidiactl", "/opt/train/python", "train.py")
    process(tmp_path, 13, "/dev/null", "/usr/bin/cat")
    (tmp_path / "self").mkdir()
    assert sorted(holders(tmp_path)) == [Holder(11, "python3", True), Holder(12, "python", False)]
