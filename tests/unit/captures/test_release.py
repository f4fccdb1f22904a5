import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.captures.release import end_pause
from stallwatch.node.procfs import ProcessDirectory
from tests.builders.records import start_ticks_of

TRACER = Path(__file__).parents[2] / "programs" / "tracer.py"
THREADS = "import threading\nfor _ in range(3): threading.Thread(target=threading.Event().wait, daemon=True).start()\n"


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", THREADS + "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


class Pause:
    """A py-spy that has paused `pid` and does not go on."""

    def __init__(self, pid: int, tracer: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, TRACER, "--pid", str(pid)], stdin=-1, stdout=-1, env={**os.environ, "TRACER": tracer}
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"paused\n":
            pytest.skip("nobody may trace another process here")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def let_go(self) -> None:
        self.process.communicate(b"\n")


def gone_on(pid: int) -> bool:
    """Its threads stand in waits, where a thread that is stopped is shown as stopped."""
    with ProcessDirectory(pid) as directory:
        return all(directory.read(f"task/{tid}/stat").split()[2] in b"SR" for tid in directory.names("task"))


def state(pid: int) -> str:
    with ProcessDirectory(pid) as directory:
        return directory.stat().state


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def test_a_process_whose_py_spy_is_killed_in_its_pause_goes_on(process: "subprocess.Popen[bytes]") -> None:
    pause = Pause(process.pid, "attaches")
    assert end_pause(process.pid, start_ticks_of(process.pid), pause.process.pid, pause.kill)
    assert gone_on(process.pid)


def test_a_killed_py_spy_leaves_a_process_stopped_without_that(process: "subprocess.Popen[bytes]") -> None:
    """What the rest is for: else the tests of others' stops could not fail."""
    Pause(process.pid, "attaches").kill()
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert state(process.pid) == "T"


@pytest.mark.parametrize("tracer", ["attaches", "waited"])
def test_a_stop_that_somebody_else_sent_in_the_pause_stays(process: "subprocess.Popen[bytes]", tracer: str) -> None:
    pause = Pause(process.pid, tracer)
    os.kill(process.pid, signal.SIGSTOP)
    assert not end_pause(process.pid, start_ticks_of(process.pid), pause.process.pid, pause.kill)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert state(process.pid) == "T"


def test_a_stop_that_somebody_else_sent_as_the_pause_was_cut_off_stays(process: "subprocess.Popen[bytes]") -> None:
    pause = Pause(process.pid, "attaches")

    def kill() -> None:
        os.kill(process.pid, signal.SIGSTOP)
        pause.kill()

    assert not end_pause(process.pid, start_ticks_of(process.pid), pause.process.pid, kill)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert state(process.pid) == "T"


def test_a_stop_after_a_pause_that_ended_by_itself_stays(process: "subprocess.Popen[bytes]") -> None:
    pause = Pause(process.pid, "ends")
    pause.let_go()
    stop(process.pid)
    assert not end_pause(process.pid, start_ticks_of(process.pid), pause.process.pid, lambda: None)
    assert state(process.pid) == "T"


def test_running_process_is_left_alone(process: "subprocess.Popen[bytes]") -> None:
    assert not end_pause(process.pid, start_ticks_of(process.pid), 1, lambda: None)


def test_process_that_took_over_the_pid_is_left_alone(process: "subprocess.Popen[bytes]") -> None:
    pause = Pause(process.pid, "attaches")
    assert not end_pause(process.pid, start_ticks_of(process.pid) - 1, pause.process.pid, pause.kill)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert state(process.pid) == "T"


def test_process_that_is_gone_needs_nothing() -> None:
    assert not end_pause(2**22 + 1, 5, 1, lambda: None)
