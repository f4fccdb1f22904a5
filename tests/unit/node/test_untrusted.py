import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.node import untrusted


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_regular_file_is_read(tmp_path: Path, directory: int) -> None:
    (tmp_path / "record").write_bytes(b"abc")
    data, status = untrusted.read_regular(directory, "record", 100)
    assert data == b"abc"
    assert status.st_uid == os.geteuid()


def test_symbolic_link_is_not_followed(tmp_path: Path, directory: int) -> None:
    (tmp_path / "target").write_bytes(b"secret")
    (tmp_path / "record").symlink_to("target")
    with pytest.raises(untrusted.FileRefused, match=r"record: a symbolic link"):
        untrusted.open_regular(directory, "record", 100)


def test_fifo_is_refused_without_opening_it(tmp_path: Path, directory: int) -> None:
    os.mkfifo(tmp_path / "record")
    with pytest.raises(untrusted.FileRefused, match="not a regular file"):
        untrusted.open_regular(directory, "record", 100)


def test_directory_is_refused(tmp_path: Path, directory: int) -> None:
    (tmp_path / "record").mkdir()
    with pytest.raises(untrusted.FileRefused, match="not a regular file"):
        untrusted.open_regular(directory, "record", 100)


def test_large_file_is_refused(tmp_path: Path, directory: int) -> None:
    (tmp_path / "record").write_bytes(b"x" * 101)
    with pytest.raises(untrusted.FileRefused, match="101 bytes"):
        untrusted.open_regular(directory, "record", 100)


def test_path_does_not_lead_out_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "inside").mkdir()
    inside = os.open(tmp_path / "inside", os.O_RDONLY)
    try:
        with pytest.raises(untrusted.FileRefused):
            untrusted.open_regular(inside, "../outside", 100)
    finally:
        os.close(inside)


def test_link_to_a_directory_on_the_way_is_refused(tmp_path: Path, directory: int) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/record").write_bytes(b"secret")
    (tmp_path / "way").symlink_to("real")
    with pytest.raises(untrusted.FileRefused):
        untrusted.open_regular(directory, "way/record", 100)


def test_missing_file_is_an_ordinary_error(directory: int) -> None:
    with pytest.raises(FileNotFoundError):
        untrusted.open_regular(directory, "nothing", 100)


def test_absolute_link_inside_a_root_ends_at_that_root(tmp_path: Path, directory: int) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("container")
    (tmp_path / "link").symlink_to("/etc/hostname")
    descriptor = untrusted.open_in_root(directory, "/link", 100)
    try:
        assert untrusted.read_bounded(descriptor, 100) == b"container"
    finally:
        os.close(descriptor)


@pytest.fixture
def root() -> Iterator[int]:
    """The node's own."""
    opened = os.open("/", os.O_PATH)
    yield opened
    os.close(opened)


def given_to(path: Path, link: Path) -> int:
    """Make a link to a path, and have it belong to somebody who is not root; return whom."""
    link.symlink_to(path)
    if os.geteuid() == 0:
        os.lchown(link, 64_221, 64_221)
    return link.lstat().st_uid


@pytest.mark.parametrize("way", ["file", "folder/file", "again", "up"])
def test_a_link_of_somebody_else_on_the_way_is_not_followed(tmp_path: Path, root: int, way: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_bytes(b"pass")
    (tmp_path / "real/again").symlink_to(f"{tmp_path}/folder/file")
    (tmp_path / "real/up").symlink_to("../folder/../real/./file")
    owner = given_to(tmp_path / "real/file", tmp_path / "file")
    given_to(tmp_path / "real", tmp_path / "folder")
    path = str(tmp_path / ("real" if way in ("again", "up") else "") / way)
    with pytest.raises(untrusted.FileRefused, match=f"leads through a link of uid {owner}; not followed"):
        untrusted.open_in_root(root, path, 100, users=(owner + 1, os.geteuid()) if os.geteuid() == 0 else ())
    descriptor = untrusted.open_in_root(root, path, 100, users=(owner,))
    assert untrusted.read_bounded(descriptor, 100) == b"pass"
    os.close(descriptor)


def test_links_end_at_their_root_and_at_some_number(tmp_path: Path, directory: int) -> None:
    (tmp_path / "file").write_bytes(b"pass")
    (tmp_path / "out").symlink_to("../../../../../file")
    descriptor = untrusted.open_in_root(directory, "/out", 100, users=(os.geteuid(),))
    assert untrusted.read_bounded(descriptor, 100) == b"pass"
    os.close(descriptor)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="Too many levels"):
        untrusted.open_in_root(directory, "/round", 100, users=(os.geteuid(),))


def test_a_kernel_without_openat2_follows_no_more_links(
    tmp_path: Path, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(untrusted, "_openat2", refuse)
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_bytes(b"pass")
    owner = given_to(tmp_path / "real", tmp_path / "way")
    with pytest.raises(untrusted.FileRefused, match="leads through a link"):
        untrusted.open_in_root(root, f"{tmp_path}/way/file", 100)
    for path in ("way/file", "real/file"):
        os.close(untrusted.open_in_root(root, f"{tmp_path}/{path}", 100, users=(owner,)))


def test_reading_stops_at_the_limit(tmp_path: Path, directory: int) -> None:
    (tmp_path / "growing").write_bytes(b"x" * 50)
    descriptor = untrusted.open_regular(directory, "growing", 100)
    try:
        assert len(untrusted.read_bounded(descriptor, 20)) == 20
    finally:
        os.close(descriptor)


KERNELS_OWN = ("/proc/self/maps", "/proc/kallsyms", "/proc/1/environ", "/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("target", KERNELS_OWN)
def test_a_link_into_what_the_kernel_makes_up_is_not_read(tmp_path: Path, target: str) -> None:
    (tmp_path / "train.py").symlink_to(target)
    root = os.open("/", os.O_PATH)
    try:
        # Without root our link is anybody's, and is not even followed.
        followed = r"lies in (proc|sysfs)" if os.geteuid() == 0 else "leads through a link"
        for path, why in ((str(tmp_path / "train.py"), followed), (target, r"lies in (proc|sysfs)")):
            with pytest.raises(untrusted.FileRefused, match=why):
                untrusted.open_in_root(root, path, 1 << 20)
    finally:
        os.close(root)


def test_a_place_in_procfs_is_no_place_for_a_pipe(tmp_path: Path) -> None:
    root = os.open("/", os.O_PATH)
    try:
        with pytest.raises(untrusted.FileRefused, match="lies in proc"):
            untrusted.open_place(root, "/proc/self/oom_score_adj")
    finally:
        os.close(root)


def test_a_file_beneath_a_directory_of_procfs_is_refused() -> None:
    directory = os.open("/proc/self", os.O_RDONLY)
    try:
        with pytest.raises(untrusted.FileRefused, match="lies in proc"):
            untrusted.open_regular(directory, "status", 1 << 20)
    finally:
        os.close(directory)


def test_a_file_that_a_process_holds_open_is_judged_by_where_it_lies(tmp_path: Path) -> None:
    """It may hold another process' maps open without a right to read them: the rights would be ours."""
    (tmp_path / "log").write_bytes(b"step 1")
    process = os.open("/proc/self", os.O_RDONLY)
    held, named = os.open(tmp_path / "log", os.O_WRONLY), os.open("/proc/self/maps", os.O_PATH)
    try:
        with pytest.raises(untrusted.FileRefused, match="lies in proc"):
            untrusted.open_held(process, f"fd/{named}", 1 << 20)
        descriptor = untrusted.open_held(process, f"fd/{held}", 1 << 20)
        assert untrusted.read_bounded(descriptor, 100) == b"step 1"
        os.close(descriptor)
    finally:
        for each in (process, held, named):
            os.close(each)


def test_a_containers_root_is_reached_through_proc_and_its_files_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"pass")
    root = os.open("/proc/self/root", os.O_PATH | os.O_DIRECTORY)
    try:
        descriptor = untrusted.open_in_root(root, str(tmp_path / "train.py"), 100)
        assert untrusted.read_bounded(descriptor, 100) == b"pass"
        os.close(descriptor)
    finally:
        os.close(root)


def test_a_large_file_with_holes_is_refused_where_it_should_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    with path.open("wb") as file:
        file.write(b"\x80")
        file.truncate(8 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b".")
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(untrusted.FileRefused, match="with holes"):
        untrusted.check_holes(descriptor, "dump")
    os.close(descriptor)
    path.write_bytes(b"\x80" * (2 << 20))
    descriptor = os.open(path, os.O_RDONLY)
    untrusted.check_holes(descriptor, "dump")
    assert os.read(descriptor, 1) == b"\x80"
    os.close(descriptor)
