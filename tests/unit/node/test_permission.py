import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.node.permission import Person, check_file
from stallwatch.node.untrusted import FileRefused


def status(mode: int, uid: int, gid: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


OWNER, MEMBER, OTHER, ROOT = (Person(uid, frozenset((gid,))) for uid, gid in ((7, 70), (8, 80), (9, 90), (0, 0)))


@pytest.mark.parametrize(
    ("mode", "readers"),
    [
        (0o400, {OWNER, ROOT}),
        (0o040, {MEMBER, ROOT}),
        (0o004, {OTHER, ROOT}),
        (0o044, {MEMBER, OTHER, ROOT}),  # an owner without rights has not those of others
        (0o000, {ROOT}),
        (0o333, {ROOT}),
    ],
)
def test_the_first_class_that_fits_decides(mode: int, readers: set[Person]) -> None:
    file = status(mode, OWNER.uid, 80)
    assert {person for person in (OWNER, MEMBER, OTHER, ROOT) if person.may(os.R_OK, file)} == readers


STRANGER = Person(54321, frozenset())


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below pytest's own, which strangers cannot enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def check(person: Person, path: Path) -> None:
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    descriptor = os.open(path, os.O_PATH)
    try:
        check_file(person, root, str(path), descriptor)
    finally:
        os.close(descriptor)
        os.close(root)


def test_every_directory_above_counts(folder: Path) -> None:
    file = folder / "a" / "b" / "train.py"
    file.parent.mkdir(parents=True)
    file.write_text("x")
    check(STRANGER, file)
    (folder / "a").chmod(0o700)
    with pytest.raises(FileRefused, match="not readable"):
        check(STRANGER, file)
    check(ROOT, file)


def test_where_a_link_leads_counts(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "train.py").write_text("x")
    (folder / "train.py").symlink_to(closed / "train.py")
    with pytest.raises(FileRefused, match="not readable"):
        check(STRANGER, folder / "train.py")


def test_a_file_that_is_no_longer_where_it_was_is_refused(folder: Path) -> None:
    (folder / "train.py").write_text("x")
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    descriptor = os.open(folder / "train.py", os.O_PATH)
    (folder / "train.py").unlink()
    with pytest.raises((FileRefused, FileNotFoundError)):
        check_file(STRANGER, root, "train.py", descriptor)
    os.close(descriptor)
    os.close(root)
