import os
from pathlib import Path

import pytest

from stallwatch.node.kmsg import Kmsg, parse_record


def test_record_is_its_time_and_its_first_line() -> None:
    assert parse_record(b"6,339,5140900,-;NVRM: Xid\n SUBSYSTEM=pci\n") == (5.1409, "NVRM: Xid")
    assert parse_record(b"odd;text") == (None, "text")


def test_what_is_there_is_read_once_and_what_comes_later_after_it(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,2000000,-;first")
    kmsg = Kmsg(str(path))
    try:
        kmsg.check_readable()
        assert list(kmsg.records()) == [(2.0, "first")], "the check takes nothing away"
        with path.open("ab") as file:
            file.write(b"6,2,3000000,-;second")
        assert list(kmsg.records()) == [(3.0, "second")]
        assert not list(kmsg.records())
    finally:
        kmsg.close()


def test_what_is_not_ours_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Kmsg(str(tmp_path / "absent"))
    folder = Kmsg(str(tmp_path))  # it opens, and does not read
    try:
        with pytest.raises(IsADirectoryError):
            folder.check_readable()
    finally:
        folder.close()
    assert os.path.isdir(tmp_path)
