import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stallwatch.node.procfs import (
    ProcessDirectory,
    parse_io,
    parse_motion,
    parse_pauses,
    parse_stat,
    parse_status,
    parse_wchan,
    wait_status,
)
from tests.unit.sensors.fake_proc import stat_line


def test_command_may_hold_spaces_and_parentheses() -> None:
    stat = parse_stat(stat_line(7, command="a) S 1 (b", state="D", parent=3, start=55).encode())
    assert (stat.pid, stat.command, stat.state, stat.parent_pid, stat.start_ticks) == (7, "a) S 1 (b", "D", 3, 55)


def test_cpu_is_user_and_system_time() -> None:
    assert parse_stat(stat_line(7, ticks=30).encode()).cpu_ticks == 30


def test_what_changes_from_tick_to_tick_is_what_the_whole_line_says() -> None:
    line = stat_line(7, command="a) S 1 (b", state="D", ticks=30).encode()
    assert parse_motion(line) == (parse_stat(line).state, parse_stat(line).cpu_ticks) == ("D", 30)


def test_exit_status_is_the_last_field() -> None:
    assert parse_stat(stat_line(7, state="Z", exit_status=768).encode()).exit_status == 768


@pytest.mark.parametrize("line", [b"", b"7 (x", b"7 (x) S 1 2", b"nonsense"])
def test_what_is_no_stat_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_stat(line)
    with pytest.raises(ValueError):
        parse_motion(line)


def test_status_names_users_tracer_and_pids_of_every_namespace() -> None:
    status = parse_status(b"Uid:\t1\t2\t3\t4\nGid:\t5\t5\t5\t5\nGroups:\t\nTracerPid:\t9\nNSpid:\t700\t7\n")
    assert status.uids == (1, 2, 3, 4)
    assert status.groups == ()
    assert status.tracer_pid == 9
    assert status.namespace_pids == (700, 7)


def test_io_counts_system_calls_so_that_cached_and_network_reads_show() -> None:
    assert parse_io(b"rchar: 10\nwchar: 20\nsyscr: 1\nread_bytes: 0\n") == (10, 20)
    with pytest.raises(ValueError, match="rchar"):
        parse_io(b"")


@pytest.mark.parametrize(("text", "name"), [(b"0", None), (b"", None), (b"futex_do_wait", "futex_do_wait")])
def test_wchan_that_the_kernel_does_not_tell_is_unknown(text: bytes, name: str | None) -> None:
    assert parse_wchan(text) == name


def test_wait_status_is_a_code_or_a_signal() -> None:
    assert wait_status(3 << 8) == (3, None)
    assert wait_status(9) == (None, 9)
    assert wait_status(11 | 0x80) == (None, 11)  # with a core dump


def test_directory_of_an_ended_process_reads_nothing_of_its_successor() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with ProcessDirectory(child.pid) as directory:
        assert directory.stat().pid == child.pid
        child.communicate(b"\n")
        with pytest.raises(ProcessLookupError):
            directory.stat()
        with pytest.raises(ProcessLookupError):
            directory.read("cmdline")


def test_no_such_process_is_said() -> None:
    with pytest.raises(ProcessLookupError, match="no process"):
        ProcessDirectory(2**22 + 1)


def test_real_stat_of_this_process_is_understood() -> None:
    with ProcessDirectory(os.getpid()) as directory:
        stat = directory.stat()
    assert (stat.pid, stat.parent_pid) == (os.getpid(), os.getppid())


@pytest.mark.parametrize(
    "more", [b"", b"TracerPid:\t9\n", b"TracerPid:\t0\nvoluntary_ctxt_switches:\t70\nnonvoluntary_ctxt_switches:\t3\n"]
)
def test_what_changes_in_a_status_is_what_the_whole_of_it_says(more: bytes) -> None:
    data = b"Name:\tTracerPid:\nUid:\t1\t2\t3\t4\n" + more
    status = parse_status(data)
    assert parse_pauses(data) == (status.tracer_pid, status.wakes)


@pytest.mark.parametrize(("state", "is_stopped"), [("T", True), ("S", False), ("t", False)])
def test_who_is_stopped_is_told_by_the_state_whatever_its_name(tmp_path: Path, state: str, is_stopped: bool) -> None:
    # The longest name there is, a kernel thread's, and the largest pid; the rest of the line is not read.
    name = "a) T (b".ljust(63, "x")
    stat = tmp_path / "4194304/task/4194304/stat"
    stat.parent.mkdir(parents=True)
    stat.write_text(f"4194304 ({name}) {state} " + " ".join(["18446744073709551615"] * 49) + "\n")
    with ProcessDirectory(4194304, str(tmp_path)) as directory:
        assert directory.is_stopped() is is_stopped


WITHOUT_ITS_MAIN_THREAD = """
import ctypes, threading
threading.Thread(target=input).start()
ctypes.CDLL(None).syscall(60, 0)  # exit(2), of this thread alone
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call")
def test_a_process_whose_main_thread_has_ended_alone_lives() -> None:
    """It was told as a rank that had exited, for certain."""
    command = [sys.executable, "-c", WITHOUT_ITS_MAIN_THREAD]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child, ProcessDirectory(child.pid) as directory:
        while parse_stat(directory.read("stat")).state != "Z":
            assert child.poll() is None
            time.sleep(0.01)  # the test's own time limit bounds this
        while directory.stat().state not in ("S", "D"):
            time.sleep(0.01)
        assert directory.living_thread() == max(map(int, directory.names("task"))) != child.pid
        child.kill()
        while directory.stat().state != "Z":  # nobody has waited for it
            time.sleep(0.01)
        assert directory.living_thread() == child.pid


def test_a_process_that_is_killed_and_cannot_end_yet_is_shown_as_gone(tmp_path: Path) -> None:
    """One thread is held by a driver: what the kernel will end is no rank any more."""
    task = tmp_path / "70" / "task"
    for tid, state in ((70, "Z"), (71, "D")):
        (task / str(tid)).mkdir(parents=True)
        (task / str(tid) / "stat").write_text(stat_line(tid, state=state, threads=2))
        (task / str(tid) / "status").write_text("Uid:\t1\t1\t1\t1\nSigPnd:\t0000000000000100\n")
    (tmp_path / "70" / "stat").write_text(stat_line(70, state="Z", threads=2))
    with ProcessDirectory(70, str(tmp_path)) as directory:
        assert directory.stat().state == "Z"
        (task / "71" / "status").write_text("Uid:\t1\t1\t1\t1\nSigPnd:\t0000000000000000\n")
        assert directory.stat().state == "D"
