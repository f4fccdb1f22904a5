"""Files in a directory that others share: made exclusively, written whole, given up when they are no longer ours."""

import os
import re
import stat
from pathlib import Path

import pytest

from stallwatch.hook import layout
from stallwatch.hook.identity import ProcessIdentity
from stallwatch.hook.image import encode
from stallwatch.hook.publication import RankFile
from tests.builders.records import decoded

PROCESS = ProcessIdentity(pid=7, start_ticks=100, pid_namespace=4026531836, node="n1")
LATER = PROCESS._replace(start_ticks=200)  # the pid has come round
ELSEWHERE = PROCESS._replace(pid_namespace=PROCESS.pid_namespace + 1)


def image(process: ProcessIdentity = PROCESS) -> bytes:
    words = {"pid": process.pid, "start_ticks": process.start_ticks, "pid_namespace": process.pid_namespace}
    return encode(words, (0,) * layout.RING_SLOTS, (), {})


def made(directory: Path, process: ProcessIdentity = PROCESS) -> RankFile:
    file = RankFile(str(directory), 3, process)
    file.write(image(process))
    return file


def test_the_file_has_its_whole_space_from_the_start(tmp_path: Path) -> None:
    status = Path(RankFile(str(tmp_path), 3, PROCESS).path).stat()
    assert status.st_size == layout.RECORD_BYTES
    assert status.st_blocks * 512 >= layout.RECORD_BYTES
    assert stat.S_IMODE(status.st_mode) == 0o644


def test_everybody_may_read_the_record_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        file = made(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(file.path).stat().st_mode) == 0o644


def test_a_truncated_file_is_whole_again_after_the_next_write(tmp_path: Path) -> None:
    file = made(tmp_path)
    os.truncate(file.path, 10)
    file.write(image())
    assert decoded(Path(file.path).read_bytes()).pid == 7


def test_an_unlinked_or_replaced_file_is_noticed(tmp_path: Path) -> None:
    file = made(tmp_path)
    os.unlink(file.path)
    with pytest.raises(FileNotFoundError):
        file.write(image())
    theirs = image(LATER)
    Path(file.path).write_bytes(theirs)
    with pytest.raises(FileNotFoundError):
        file.write(image())
    assert Path(file.path).read_bytes() == theirs


def test_a_link_in_its_place_is_never_followed(tmp_path: Path) -> None:
    file = made(tmp_path)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    os.unlink(file.path)
    os.symlink(victim, file.path)
    with pytest.raises(OSError):
        file.write(image())
    RankFile(str(tmp_path), 3, PROCESS).write(image())  # a new one takes the link's place
    assert victim.read_bytes() == b"precious"


def test_a_pipe_in_its_place_blocks_nobody(tmp_path: Path) -> None:
    file = made(tmp_path)
    os.unlink(file.path)
    os.mkfifo(file.path)
    with pytest.raises(OSError):
        file.write(image())


def test_nobody_can_foresee_a_name_and_hold_it(tmp_path: Path) -> None:
    """Not by rank and pid, not from another file of the same process, not from what the file is called at first."""
    files = [made(tmp_path), made(tmp_path), made(tmp_path, ELSEWHERE)]
    names = [Path(path).name for file in files for path in (file.path, file.facts_path)]
    marks = [mark for name in names for mark in re.findall("[0-9a-f]{16}", name)]
    assert len(set(names)) == 6
    assert len(set(marks)) == 6  # three keys, each in two names, and three marks of facts
    assert [layout.parse_record_name(Path(file.path).name) for file in files] == [(3, file.key) for file in files]
    assert all(file.key.startswith("7-") for file in files)
    for file in files:
        file.write(image(ELSEWHERE if file is files[2] else PROCESS))


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        RankFile(str(tmp_path), 3, PROCESS)
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_was_given_to_another_user_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a service manager that makes a whole tree its service's own."""
    file = RankFile(str(tmp_path), 3, PROCESS)

    def refused(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(FileNotFoundError):
        file.write(b"x")
