"""Files beside a record: the directory is everybody's, so names prove nothing."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from stallwatch.hook import layout
from stallwatch.node import rank_files

KEY = "50-0123456789abcdef"
MARK, OTHER = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


def made(path: Path, data: bytes = b"{}", uid: int | None = None) -> Path:
    path.write_bytes(data)
    if uid is not None:
        os.chown(path, uid, -1)
    return path


def removed(record: Path) -> None:
    status = record.stat()
    rank_files.remove(record.parent, [rank_files.Read(record.name, (status.st_dev, status.st_ino), status.st_uid)])


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@needs_root
def test_facts_are_the_record_s_owner_s_whatever_another_user_calls_his(tmp_path: Path) -> None:
    record = tmp_path / layout.record_name(1, KEY)
    made(tmp_path / layout.facts_name(1, KEY, MARK), b"ours", 1001)
    os.utime(tmp_path / layout.facts_name(1, KEY, MARK), (1, 1))
    made(tmp_path / layout.facts_name(1, KEY, OTHER), b"theirs", 1002)
    made(tmp_path / layout.facts_name(1, KEY), b"theirs", 1002)
    assert rank_files.read_facts(record, 1001, 99) == b"ours"
    with pytest.raises(FileNotFoundError):
        rank_files.read_facts(record, 1003, 99)


def test_facts_of_hooks_of_before_have_no_mark(tmp_path: Path) -> None:
    made(tmp_path / layout.facts_name(1, 50), b"old")
    assert rank_files.read_facts(tmp_path / layout.record_name(1, 50), os.geteuid(), 99) == b"old"


@needs_root
def test_nobodys_file_is_removed_on_anothers_word(tmp_path: Path) -> None:
    victims = [
        made(tmp_path / layout.facts_name(1, KEY, MARK), uid=1001),
        made(tmp_path / layout.answer_name(1, KEY, 3, "nccl", MARK), uid=1001),
        made(tmp_path / layout.record_name(10, KEY), uid=1001),
    ]
    (tmp_path / f"rank-1-{KEY}.facts.json").symlink_to(victims[0])
    crafted = made(tmp_path / layout.record_name(1, KEY), uid=1002)
    own = made(tmp_path / layout.facts_name(1, KEY, OTHER), uid=1002)
    removed(crafted)
    assert not crafted.exists()
    assert not own.exists()
    assert all(victim.exists() for victim in victims)


def test_a_record_whose_name_another_file_has_taken_stays(tmp_path: Path) -> None:
    record = made(tmp_path / layout.record_name(1, KEY))
    status = record.stat()
    record.rename(tmp_path / "elsewhere")
    made(record)
    rank_files.remove(tmp_path, [rank_files.Read(record.name, (status.st_dev, status.st_ino), status.st_uid)])
    assert record.exists()


@pytest.mark.parametrize("name", ["rank-1-2", "..beat", "rank-1-2.x.beat", f"rank-1-{KEY}.beat.beat", "notes.beat"])
def test_what_is_no_record_by_its_name_is_not_touched(tmp_path: Path, name: str) -> None:
    record = made(tmp_path / name)
    removed(record)
    assert record.exists()


@needs_root
def test_the_folder_of_requests_is_the_daemons_own_or_none(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = made(elsewhere / layout.request_name(1, KEY))
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    (ranks / ".daemon").symlink_to(elsewhere)
    removed(made(ranks / layout.record_name(1, KEY)))
    assert victim.exists()
    with pytest.raises(OSError):
        rank_files.open_requests(ranks)
    (ranks / ".daemon").unlink()
    (ranks / ".daemon").mkdir()
    os.chown(ranks / ".daemon", 1002, -1)
    with pytest.raises(PermissionError, match="belongs to uid 1002"):
        rank_files.open_requests(ranks)
    os.chown(ranks / ".daemon", os.geteuid(), -1)
    os.close(rank_files.open_requests(ranks))
    os.chown(ranks, 1002, -1)
    with pytest.raises(PermissionError, match="belongs to uid 1002"):
        rank_files.open_requests(ranks)
    removed(made(ranks / layout.record_name(1, KEY)))
    os.chown(ranks, os.geteuid(), -1)


def test_a_directory_that_somebody_filled_is_read_once_for_all_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """120,000 names that are no records took 0.15 s each time, in the reading of all ranks."""
    records = [made(tmp_path / layout.record_name(rank, KEY)) for rank in range(50)]
    reads: list[int] = []
    really = os.scandir

    def counted(where: int) -> Any:
        reads.append(where)
        return really(where)

    monkeypatch.setattr(os, "scandir", counted)
    monkeypatch.setattr(os, "listdir", counted)
    read = [rank_files.Read(one.name, (one.stat().st_dev, one.stat().st_ino), one.stat().st_uid) for one in records]
    rank_files.remove(tmp_path, read)
    assert not any(one.exists() for one in records)
    assert len(reads) == 1


def test_who_asked_for_names_before_a_reading_began_is_served_by_it(tmp_path: Path) -> None:
    first, second = (made(tmp_path / layout.record_name(rank, KEY)).name for rank in (1, 2))
    made(tmp_path / "nobodys")
    (tmp_path / second).unlink()
    listing, directory = rank_files._Listing(), os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        before = time.monotonic()
        assert listing.names(directory) == (first,)
        made(tmp_path / second)
        assert listing.names(directory, before) == (first,)
        assert sorted(listing.names(directory)) == [first, second]
    finally:
        os.close(directory)
