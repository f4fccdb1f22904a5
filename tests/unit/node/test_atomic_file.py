import os
from pathlib import Path

import pytest

from stallwatch.node.atomic_file import write_atomically


def test_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a/file", b"old")

    def full_disk(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "a/file", b"new")
    assert (tmp_path / "a/file").read_bytes() == b"old"
    assert os.listdir(tmp_path / "a") == ["file"]


def test_it_has_the_mode_that_is_asked_for_and_makes_no_folder_where_it_is_to_make_none(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "file", b"for everybody", mode=0o644)
        write_atomically(tmp_path / "own", b"for us")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "own")] == [0o644, 0o600]
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "gone/file", b"", makes_folder=False)
    assert not (tmp_path / "gone").exists()


def test_whatever_lies_in_its_place_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"another's")
    (tmp_path / "file").symlink_to(tmp_path / "other")
    write_atomically(tmp_path / "file", b"ours")
    assert (tmp_path / "other").read_bytes() == b"another's"
    assert not (tmp_path / "file").is_symlink()
