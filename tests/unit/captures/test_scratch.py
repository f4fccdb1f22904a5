import os
import tempfile
from pathlib import Path

import pytest

from stallwatch.captures.keeper import scratch_folder


def test_a_closed_tmp_is_not_needed_where_memory_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    with scratch_folder(str(tmp_path)) as folder:
        assert Path(folder).parent == tmp_path
        assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert not os.listdir(tmp_path)


def test_without_a_place_in_memory_it_lies_where_temporary_files_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder("/nonexistent") as folder:
        assert Path(folder).parent == tmp_path


def test_the_last_room_of_a_small_memory_is_left_to_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, temporary = tmp_path / "memory", tmp_path / "temporary"
    memory.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    full = os.statvfs_result((4096, 4096, 16384, 1000, 1000, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with scratch_folder(str(memory)) as folder:
        assert Path(folder).parent == temporary
