"""For which file system or server a thread sleeps, from a /proc that is made here."""

import os
import platform
import socket
from pathlib import Path

import pytest

from stallwatch.captures.process import _waited_for
from stallwatch.captures.waited_for import waited_for
from stallwatch.node.procfs import ProcessDirectory

PID = 42
HERE = socket.gethostname()
# read(fd, …), openat(dirfd, path, …), futex(…)
READ, OPENAT, FUTEX = {"x86_64": (0, 257, 202), "aarch64": (63, 56, 98)}.get(platform.machine(), (0, 0, 0))
AT_FDCWD = 0xFFFFFF9C
MOUNTS = """\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw - proc proc rw
23 21 0:40 / /ckpt rw - nfs4 filer:/vol rw
24 21 0:41 / /my\\040data rw shared:7 - fuse.sshfs anna@store:/data rw
25 21 0:42 / /scratch rw - xfs /dev/nvme0n1p1 rw
26 25 0:43 / /scratch/lustre rw - lustre 10.0.0.5@tcp:/work rw
27 21 0:44 / /bucket rw - fuse s3fs rw
nonsense
"""
TEXT = 0x1FF0  # across the end of a page

pytestmark = pytest.mark.skipif(not OPENAT, reason="numbers of this machine's system calls are not known")


class Sleeper:
    """A thread in a system call."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.home = proc, proc / str(PID)
        for folder in ("task/42", "fd", "fdinfo", "net", "root/etc"):
            (self.home / folder).mkdir(parents=True)
        (self.home / "mountinfo").write_text(MOUNTS)
        (self.home / "cwd").symlink_to("/ckpt/run-7")

    def calls(self, number: int, *arguments: int) -> str:
        words = " ".join(f"{one:#x}" for one in (*arguments, 0, 0, 0))
        (self.home / "task/42/syscall").write_text(f"{number} {words}\n")
        return self.now()

    def now(self) -> str:
        with ProcessDirectory(PID, str(self.proc)) as directory:
            return waited_for(directory, PID)

    def opens(self, path: str) -> str:
        with (self.home / "mem").open("wb") as memory:
            memory.seek(TEXT)
            memory.write(os.fsencode(path) + b"\0more")
        return self.calls(OPENAT, AT_FDCWD, TEXT)

    def holds(self, number: int, target: str, mount: int = 0) -> None:
        (self.home / f"fd/{number}").symlink_to(target)
        (self.home / f"fdinfo/{number}").write_text(f"pos:\t0\nflags:\t0100002\nmnt_id:\t{mount}\n")


@pytest.fixture
def sleeper(tmp_path: Path) -> Sleeper:
    return Sleeper(tmp_path)


def test_an_open_file_is_of_its_mount(sleeper: Sleeper) -> None:
    sleeper.holds(7, "/ckpt/step_100.pt", 23)
    assert sleeper.calls(READ, 7, 0x1000) == "nfs4 filer:/vol"


def test_a_local_file_system_is_one_nodes(sleeper: Sleeper) -> None:
    sleeper.holds(7, "/scratch/step_100.pt", 25)
    assert sleeper.calls(READ, 7, 0x1000) == f"xfs /dev/nvme0n1p1 of {HERE}"


@pytest.mark.parametrize(
    ("path", "on"),
    [
        ("/ckpt/a/b.pt", "nfs4 filer:/vol"),
        ("/my data/x", "fuse.sshfs anna@store:/data"),
        ("/scratch/x", f"xfs /dev/nvme0n1p1 of {HERE}"),
        ("/scratch/lustre/x", "lustre 10.0.0.5@tcp:/work"),
        ("/bucket/x", f"fuse s3fs of {HERE}"),
        ("/etc/./../ckpt/x", "nfs4 filer:/vol"),
        ("/home/x", f"ext4 /dev/sda1 of {HERE}"),
        ("step.pt", "nfs4 filer:/vol"),
        ("../../etc/hosts", "nfs4 filer:/vol"),  # what lies beneath a mount point is not looked at
        ("/proc/self/status", ""),
    ],
)
def test_a_path_is_of_the_mount_that_holds_it(sleeper: Sleeper, path: str, on: str) -> None:
    assert sleeper.opens(path) == on


def test_links_of_the_root_file_system_are_followed(sleeper: Sleeper) -> None:
    (sleeper.home / "root/data").symlink_to("etc/link")
    (sleeper.home / "root/etc/link").symlink_to("/ckpt/shared")
    (sleeper.home / "root/loop").symlink_to("loop")
    assert sleeper.opens("/data/x.bin") == "nfs4 filer:/vol"
    assert sleeper.opens("/loop/x") == f"ext4 /dev/sda1 of {HERE}"


def test_a_connection_is_to_its_server(sleeper: Sleeper) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   1: 0600000A:9C40 0700000A:01BB 01 00000000:00000000 00:00000000 00000000     0        0 555 1 x\n"
    (sleeper.home / "net/tcp").write_text(head + line)
    (sleeper.home / "net/tcp6").write_text(head)
    sleeper.holds(9, "socket:[555]")
    sleeper.holds(10, "socket:[556]")
    assert sleeper.calls(READ, 9, 0) == "tcp 10.0.0.7:443"
    assert sleeper.calls(READ, 10, 0) == ""


def test_a_terminal_is_named(sleeper: Sleeper) -> None:
    for number, device, on in ((5, "/dev/pts/3", f"terminal /dev/pts/3 of {HERE}"), (6, "/dev/null", "")):
        sleeper.holds(number, device, 21)
        assert sleeper.calls(READ, number, 0) == on if on else "terminal" not in sleeper.calls(READ, number, 0)


def test_nothing_is_said_of_another_call_or_of_none(sleeper: Sleeper) -> None:
    sleeper.holds(8, "pipe:[77]", 12)
    assert sleeper.calls(READ, 8, 0) == ""
    assert sleeper.calls(FUTEX, 7, 0) == ""
    for words in ("running\n", "-1 0x7ffd 0x7f00\n", ""):
        (sleeper.home / "task/42/syscall").write_text(words)
        assert sleeper.now() == ""


@pytest.mark.parametrize(("uid", "on"), [(1000, "nfs4 filer:/vol"), (0, "")])
def test_of_a_child_that_runs_as_another_user_nothing_is_read(sleeper: Sleeper, uid: int, on: str) -> None:
    sleeper.holds(7, "/ckpt/step_100.pt", 23)
    sleeper.calls(READ, 7, 0x1000)
    (sleeper.home / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    assert _waited_for(PID, str(sleeper.proc), {1000}) == on
