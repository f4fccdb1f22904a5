"""Takes processor time away from the process that asks for it, as neighbours and limits of a shared node do."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_LITTLE_MICROSECONDS = 1000  # of a second: the least that a control group may have


@contextlib.contextmanager
def neighbour_takes_the_core(seconds: float) -> Iterator[None]:
    """For so long all threads of this process run on one core only, when a child there would not."""
    cores, pid = os.sched_getaffinity(0), os.getpid()
    core = {min(cores)}
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, core)
        _place(pid, core, os.SCHED_IDLE)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        _place(pid, cores, os.SCHED_OTHER)  # who has no turn does not do that itself
        os._exit(0)
    try:
        yield
    finally:
        os.waitpid(child, 0)


@contextlib.contextmanager
def leave_little(seconds: float) -> Iterator[None]:
    """For so long this process has a thousandth of a core, by a control group of its own. Raise OSError where these are
    not ours to make."""
    old = _ROOT / "cpu"
    parent = old if old.is_dir() else _ROOT
    group = parent / f"stallwatch-control-{os.getpid()}"
    group.mkdir()
    child = os.fork()  # who is throttled does not raise its own limit in time
    if child == 0:
        time.sleep(seconds)
        _limit(group, -1)
        os._exit(0)
    _limit(group, _LITTLE_MICROSECONDS)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        os.waitpid(child, 0)
        (parent / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):
            group.rmdir()


def _limit(group: Path, microseconds: int) -> None:
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text("1000000")
        (group / "cpu.cfs_quota_us").write_text(str(microseconds))
    else:
        (group / "cpu.max").write_text(f"{'max' if microseconds < 0 else microseconds} 1000000")


def _place(pid: int, cores: set[int], policy: int) -> None:
    """Where all threads of a process may run, and how urgently; those that are about to end may have ended."""
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(thread, policy, os.sched_param(0))
            os.sched_setaffinity(thread, cores)
