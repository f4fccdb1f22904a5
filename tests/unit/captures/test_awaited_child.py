"""For which child a thread waits, from a /proc that is made here."""

import platform
from pathlib import Path

import pytest

from stallwatch.captures.awaited_child import awaited_child
from stallwatch.captures.process import look_at
from stallwatch.node.procfs import ProcessDirectory
from tests.unit.sensors.fake_proc import FakeProc

WAIT4, WAITID = {"x86_64": (61, 247), "aarch64": (260, 95)}.get(platform.machine(), (0, 0))
P_ALL, P_PID, P_PIDFD = 0, 1, 3

pytestmark = pytest.mark.skipif(not WAIT4, reason="numbers of this machine's system calls are not known")


@pytest.mark.parametrize(
    ("call", "pid"),
    [
        (f"{WAIT4} 0x321 0x7ffe 0x0", 801),
        (f"{WAIT4} 0xffffffffffffffff 0x7ffe 0x0", None),
        (f"{WAIT4} 0xffffffff 0x7ffe 0x0", None),
        (f"{WAIT4} 0x0 0x7ffe 0x0", None),
        (f"{WAITID} {P_PID:#x} 0x321 0x7ffe", 801),
        (f"{WAITID} {P_ALL:#x} 0x0 0x7ffe", None),
        (f"{WAITID} {P_PIDFD:#x} 0x5 0x7ffe", None),
        ("202 0x321 0x0 0x0", None),
        ("running", None),
        ("", None),
    ],
)
def test_the_call_names_one_child_or_any(tmp_path: Path, call: str, pid: int | None) -> None:
    FakeProc(tmp_path).add(50)
    (tmp_path / "50/task/50/syscall").write_text(call)
    with ProcessDirectory(50, str(tmp_path)) as directory:
        assert awaited_child(directory, 50) == pid


def test_it_is_asked_of_threads_that_wait_for_a_child(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50, children=(801,))
    proc.add(801, parent=50, start=1001)
    for name, asked in (("do_wait", 801), ("futex_do_wait", None), ("hrtimer_nanosleep", None)):
        (tmp_path / "50/task/50/wchan").write_text(name)
        (tmp_path / "50/task/50/syscall").write_text(f"{WAIT4 if asked else 202} 0x321 0x7ffe 0x0")
        look = look_at(50, 1000, 1, str(tmp_path))
        assert look.threads[0].awaited_child == asked
        assert [(child.pid, child.parent_pid) for child in look.children] == [(801, 50)]
