"""In which system call a thread sleeps, from a /proc that is made here."""

import platform
import threading
from pathlib import Path

import pytest

from stallwatch.captures.process import look_at
from stallwatch.captures.system_call import futex_is_endless
from stallwatch.node.procfs import ProcessDirectory
from tests.unit.sensors.fake_proc import FakeProc

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)

pytestmark = pytest.mark.skipif(not FUTEX, reason="numbers of this machine's system calls are not known")


@pytest.mark.parametrize(
    ("call", "endless"),
    [
        (f"{FUTEX} 0x7f06 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc 0x7f06", True),  # threading.Lock: measured, Linux 6.18
        (f"{FUTEX} 0x7f06 0x109 0x0 0x0 0x0 0xffffffff 0x7ffc 0x7f06", True),  # multiprocessing's
        (f"{FUTEX} 0x7f06 0x80 0x0 0x0", True),
        (f"{FUTEX} 0x7f06 0x89 0x0 0x7ffc05f36880 0x0 0xffffffff 0x7ffc 0x7f06", False),  # Event.wait(100)
        (f"{FUTEX} 0x7f06 0x81 0x1 0x0 0x0 0x0", None),  # it wakes others
        (f"{FUTEX} 0x7f06", None),
        ("0 0x7f06 0x80 0x0 0x0 0x0 0x0", None),
        ("running", None),
        ("-1 0x7ffc 0x7f06", None),
        ("", None),
    ],
)
def test_a_futex_says_whether_it_has_a_time_out(tmp_path: Path, call: str, endless: bool | None) -> None:
    FakeProc(tmp_path).add(50)
    (tmp_path / "50/task/50/syscall").write_text(call)
    (tmp_path / "50/task/50/wchan").write_text("futex_do_wait")
    with ProcessDirectory(50, str(tmp_path)) as directory:
        assert futex_is_endless(directory, 50) == endless
    assert look_at(50, 1000, 1, str(tmp_path)).threads[0].endless == endless


@pytest.mark.parametrize("timeout", [None, 1000.0])
def test_real_threads(timeout: float | None) -> None:
    """Of this process, at an event and at a lock below it."""
    event, looked = threading.Event(), None
    waiter = threading.Thread(target=event.wait, args=(timeout,), daemon=True)
    waiter.start()
    with ProcessDirectory(threading.main_thread().native_id or 0) as directory:
        for _ in range(2000):
            looked = futex_is_endless(directory, waiter.native_id or 0)
            if looked is not None:
                break
            event.wait(0.005)
    event.set()
    waiter.join()
    if looked is None:
        pytest.skip("/proc/<pid>/syscall cannot be read here")
    assert looked is (timeout is None)
