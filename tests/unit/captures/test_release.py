import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from stallwatch.captures.release import release
from stallwatch.node.procfs import ProcessDirectory
from tests.unit.sensors.records import start_ticks_of


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def state(pid: int) -> str:
    with ProcessDirectory(pid) as directory:
        return directory.stat().state


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def test_stopped_process_runs_on(process: "subprocess.Popen[bytes]") -> None:
    stop(process.pid)
    assert release(process.pid, start_ticks_of(process.pid))
    assert state(process.pid) in "SR"


def test_running_process_is_left_alone(process: "subprocess.Popen[bytes]") -> None:
    assert not release(process.pid, start_ticks_of(process.pid))


def test_process_that_took_over_the_pid_is_left_alone(process: "subprocess.Popen[bytes]") -> None:
    stop(process.pid)
    assert not release(process.pid, start_ticks_of(process.pid) - 1)
    assert state(process.pid) == "T"


def test_process_that_is_gone_needs_nothing() -> None:
    assert not release(2**22 + 1, 5)
