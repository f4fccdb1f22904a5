import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.errors import Denied
from stallwatch.node.heartbeat_file import prepare

SERVICE, ALICE, BOB = 64210, 64211, 64212


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_user_may_write_records_and_read_requests_whatever_our_umask_is(tmp_path: Path, umask: int) -> None:
    directory = tmp_path / "run" / "ranks"
    prepare(directory)
    assert mode(directory) == 0o1777
    assert mode(directory / ".daemon") == 0o755


def test_a_request_folder_that_an_older_daemon_closed_is_opened(tmp_path: Path) -> None:
    (tmp_path / ".daemon").mkdir(mode=0o700)
    prepare(tmp_path)
    assert mode(tmp_path / ".daemon") == 0o755


def test_a_link_in_place_of_the_request_folder_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / ".daemon").symlink_to("elsewhere")
    prepare(tmp_path)
    assert mode(tmp_path / "elsewhere") == 0o700
    assert stat.S_ISDIR((tmp_path / ".daemon").lstat().st_mode)


@pytest.fixture
def open_to_all(folder_for_all: Path) -> Path:
    """As /dev/shm: who comes first has the name."""
    folder_for_all.chmod(0o1777)
    return folder_for_all


def made_by(uid: int, directory: Path, permissions: int = 0o1777) -> Path:
    directory.mkdir()
    os.chown(directory, uid, uid)
    directory.chmod(permissions)
    return directory


def in_a_child_as(uid: int, prepares: Path) -> str:
    """Return what `prepare` refuses for another user."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            prepare(prepares)
        except Denied as error:
            os.write(write, f"{error} | {error.help}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as said:
        refused = said.read().decode()
    os.waitpid(child, 0)
    return refused


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="plays several users")


@needs_root
@pytest.mark.parametrize("permissions", [0o1777, 0o777, 0o2777, 0o700])
def test_root_takes_over_a_directory_that_a_user_made_first_with_the_records_in_it(
    open_to_all: Path, permissions: int
) -> None:
    directory = made_by(BOB, open_to_all / "stallwatch", permissions)
    made_by(BOB, directory / ".daemon", 0o755)
    record = directory / "rank-0-7-0123456789abcdef.beat"
    record.write_bytes(b"alice's")
    os.chown(record, ALICE, ALICE)
    prepare(directory)
    assert (directory.stat().st_uid, mode(directory)) == (0, 0o1777)
    assert ((directory / ".daemon").stat().st_uid, mode(directory / ".daemon")) == (0, 0o755)
    assert (record.read_bytes(), record.stat().st_uid) == (b"alice's", ALICE)


@needs_root
def test_an_access_list_goes_with_its_owner(open_to_all: Path) -> None:
    """One that is handed down would open what hooks write."""
    directory = made_by(BOB, open_to_all / "stallwatch")
    one = struct.pack("<IHHIHHIHHIHHI", 2, 1, 7, 2**32 - 1, 4, 7, 2**32 - 1, 16, 7, 2**32 - 1, 32, 7, 2**32 - 1)
    try:
        os.setxattr(directory, "system.posix_acl_default", one)
    except OSError:
        pytest.skip("this file system has no access lists")
    prepare(directory)
    assert "system.posix_acl_default" not in os.listxattr(directory)


@needs_root
def test_a_directory_that_a_user_made_first_is_refused_with_what_root_can_do(open_to_all: Path) -> None:
    directory = made_by(BOB, open_to_all / "stallwatch")
    refused = in_a_child_as(SERVICE, directory)
    assert f"{directory} belongs to uid {BOB}, who may remove the records of others" in refused
    assert f"chown root {directory} && chmod 1777 {directory}" in refused
    assert not (directory / ".daemon").exists(), "nothing is asked there"


@needs_root
def test_a_directory_in_a_users_own_place_is_not_taken_from_him(tmp_path: Path) -> None:
    directory = made_by(BOB, made_by(BOB, tmp_path / "home", 0o755) / "ranks")
    with pytest.raises(Denied, match=f"belongs to uid {BOB}"):
        prepare(directory)
    assert directory.stat().st_uid == BOB


@needs_root
def test_the_request_folder_of_another_user_is_put_aside_where_the_directory_is_ours(open_to_all: Path) -> None:
    """An older daemon ran as another user, and left it."""
    directory = made_by(SERVICE, open_to_all / "ranks")
    made_by(BOB, directory / ".daemon", 0o755)
    assert in_a_child_as(SERVICE, directory) == ""
    assert (directory / ".daemon").stat().st_uid == SERVICE


@needs_root
def test_the_request_folder_of_another_user_is_refused_where_the_directory_is_not_ours(open_to_all: Path) -> None:
    directory = made_by(0, open_to_all / "ranks")
    made_by(BOB, directory / ".daemon", 0o755)
    assert f".daemon belongs to uid {BOB}" in in_a_child_as(SERVICE, directory)


def test_a_hook_that_asks_while_the_daemon_starts_does_not_hide_it_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stallwatch.hook.rank_directory import is_read

    refusals, real = [BlockingIOError(11, "a hook asks"), BlockingIOError(11, "another hook asks")], fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH and refusals:
            raise refusals.pop()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    prepare(tmp_path / "ranks")
    assert not refusals
    assert is_read(str(tmp_path / "ranks"))
