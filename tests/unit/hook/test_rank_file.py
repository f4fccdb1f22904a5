"""Files in a directory that others share: made exclusively, written whole, given up when they are no longer ours."""

import os
import re
import stat
import time
from pathlib import Path

import pytest

from stallwatch.hook import layout, rank_file
from stallwatch.hook.identity import Process
from stallwatch.hook.rank_file import RankFile, choose_directory, remove_stale_files, strangers, write_private

PROCESS = Process(pid=7, start_ticks=100, pid_namespace=4026531836, node="n1")
LATER = PROCESS._replace(start_ticks=200)  # the pid has come round
ELSEWHERE = PROCESS._replace(pid_namespace=PROCESS.pid_namespace + 1)


def image(process: Process = PROCESS) -> bytes:
    words = {"pid": process.pid, "start_ticks": process.start_ticks, "pid_namespace": process.pid_namespace}
    return layout.encode(words, (0,) * layout.RING_SLOTS, (), {})


def made(directory: Path, process: Process = PROCESS) -> RankFile:
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
    assert layout.decode(Path(file.path).read_bytes()).pid == 7


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


def test_private_files_are_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "rank-3-7.facts.json"
    write_private(str(path), b"one")
    write_private(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_directory_that_hands_its_group_down_lets_the_group_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o3777)
    path = tmp_path / "x"
    write_private(str(path), b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_a_strangers_directory_hands_nothing_down_to_his_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    directory = tmp_path / "stallwatch"
    directory.mkdir()
    os.chown(directory, 1001, 1001)
    directory.chmod(0o3777)
    path = directory / "x"
    write_private(str(path), b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_record_that_was_given_to_another_user_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a service manager that makes a whole tree its service's own."""
    file = RankFile(str(tmp_path), 3, PROCESS)

    def refused(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(FileNotFoundError):
        file.write(b"x")


def test_planted_temporary_names_hinder_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    os.symlink(victim, tmp_path / "x.tmp")
    write_private(str(tmp_path / "x"), b"one")
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "x").read_bytes() == b"one"


def test_the_directory_is_the_named_one_else_the_service_s_else_the_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, fallback = tmp_path / "service", tmp_path / "fallback"
    monkeypatch.setattr(rank_file, "SERVICE_DIRECTORY", str(service))
    monkeypatch.setattr(rank_file, "FALLBACK_DIRECTORY", str(fallback))
    assert choose_directory({"STALLWATCH_DIR": str(tmp_path / "x")}) == str(tmp_path / "x")
    assert choose_directory({}) == str(fallback)
    assert stat.S_IMODE(fallback.stat().st_mode) == 0o1777
    assert choose_directory({}) == str(fallback)
    service.mkdir()
    assert choose_directory({}) == str(service)


def test_a_link_as_the_fallback_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_file, "SERVICE_DIRECTORY", str(tmp_path / "none"))
    monkeypatch.setattr(rank_file, "FALLBACK_DIRECTORY", str(tmp_path / "link"))
    os.symlink(tmp_path, tmp_path / "link")
    with pytest.raises(NotADirectoryError):
        choose_directory({})


def test_only_old_files_of_ranks_are_tidied_up(tmp_path: Path) -> None:
    old = time.time() - rank_file.STALE_SECONDS - 1
    for name in ("rank-1-2.beat", "rank-1-2.facts.json", "rank-1-2.3.gloo.dump", "notes.json", "rank-1-2.txt"):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "rank-5-6.beat").write_bytes(b"")
    remove_stale_files(str(tmp_path))
    assert {entry.name for entry in tmp_path.iterdir()} == {"notes.json", "rank-1-2.txt", "rank-5-6.beat"}


@pytest.mark.skipif(os.geteuid() != 0, reason="plays several users")
def test_whose_a_directory_is_that_somebody_else_made_first_is_said_with_what_root_can_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)  # as /dev/shm
    theirs, file, ours = tmp_path / "theirs", tmp_path / "file", tmp_path / "ours"
    theirs.mkdir()
    file.touch()
    ours.mkdir()
    for path in (tmp_path, theirs, file):
        os.chown(path, *(0, 0) if path == tmp_path else (64212, 64212))
    assert strangers(str(theirs)) == (
        f"{theirs} belongs to uid 64212, whom no other user's rank obeys; "
        f"as root: `chown root {theirs} && chmod 1777 {theirs}`"
    )
    assert strangers(str(file)) == f"{file} is no directory, but a file of uid 64212; as root: `rm {file}`"
    assert strangers(str(ours)) == strangers(str(tmp_path / "none")) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="plays several users")
def test_a_link_or_a_file_of_our_own_is_nothing_that_root_should_remove(tmp_path: Path) -> None:
    """The record below a link works; who names a file of his own by mistake is not told to remove it."""
    (tmp_path / "records").mkdir()
    (tmp_path / "link").symlink_to("records")
    (tmp_path / "data").touch()
    (tmp_path / "theirs").symlink_to("records")
    os.chown(tmp_path / "theirs", 64212, 64212, follow_symlinks=False)
    assert strangers(str(tmp_path / "link")) == ""
    assert strangers(str(tmp_path / "data")) == f"{tmp_path / 'data'} is no directory"
    assert "rm" in strangers(str(tmp_path / "theirs")), "he may lead it elsewhere"
