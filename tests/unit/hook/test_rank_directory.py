"""A directory that others share: whose it is, which one it is, and files beside the record."""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.hook import rank_directory
from stallwatch.hook.rank_directory import choose_directory, remove_stale_files, strangers, write_private


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
    monkeypatch.setattr(rank_directory, "SERVICE_DIRECTORY", str(service))
    monkeypatch.setattr(rank_directory, "FALLBACK_DIRECTORY", str(fallback))
    assert choose_directory({"STALLWATCH_DIR": str(tmp_path / "x")}) == str(tmp_path / "x")
    assert choose_directory({}) == str(fallback)
    assert stat.S_IMODE(fallback.stat().st_mode) == 0o1777
    assert choose_directory({}) == str(fallback)
    service.mkdir()
    assert choose_directory({}) == str(service)


def test_a_link_as_the_fallback_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_directory, "SERVICE_DIRECTORY", str(tmp_path / "none"))
    monkeypatch.setattr(rank_directory, "FALLBACK_DIRECTORY", str(tmp_path / "link"))
    os.symlink(tmp_path, tmp_path / "link")
    with pytest.raises(NotADirectoryError):
        choose_directory({})


def test_only_old_files_of_ranks_are_tidied_up(tmp_path: Path) -> None:
    old = time.time() - rank_directory.STALE_SECONDS - 1
    for name in ("rank-1-2.beat", "rank-1-2.facts.json", "rank-1-2.3.gloo.dump", "notes.json", "rank-1-2.txt"):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "rank-5-6.beat").write_bytes(b"")
    remove_stale_files(str(tmp_path))
    assert {entry.name for entry in tmp_path.iterdir()} == {"notes.json", "rank-1-2.txt", "rank-5-6.beat"}


def test_a_file_that_another_rank_removes_meanwhile_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks start together and tidy up together; temporary files are renamed at any moment."""
    old = time.time() - rank_directory.STALE_SECONDS - 1
    for name in ("rank-1-2.beat", "rank-3-4.beat"):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (old, old))
    entries = list(os.scandir(tmp_path))
    Path(entries[0].path).unlink()

    @contextlib.contextmanager
    def scanned(_: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        yield iter(entries)

    monkeypatch.setattr(os, "scandir", scanned)
    remove_stale_files(str(tmp_path))
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


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
