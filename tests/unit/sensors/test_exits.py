import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.model.snapshot import Heartbeat
from stallwatch.node import untrusted
from stallwatch.node.aside import OneCallAtATime
from stallwatch.sensors import exits
from stallwatch.sensors.exits import Traces, explain, note_traces
from stallwatch.sensors.processes import ProcessWatch
from tests.builders.records import decoded, record_bytes
from tests.unit.sensors.fake_proc import FakeProc, stat_line

NO_TRACES = Traces("", "", None)


class Ended:
    """A process of ours that has ended and was not reaped yet."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", code])
        self.watch = ProcessWatch(self.process.pid)
        self.pidfd = os.pidfd_open(self.process.pid)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        self.process.wait()
        self.watch.close()
        os.close(self.pidfd)


@pytest.fixture
def failed() -> Iterator[Ended]:
    ended = Ended("raise SystemExit(3)")
    yield ended
    ended.close()


@pytest.fixture
def killed() -> Iterator[Ended]:
    ended = Ended(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    yield ended
    ended.close()


def last_words(exit_code: int) -> Heartbeat:
    return decoded(record_bytes(0, 1, 1, ended=1, exit_code=exit_code, ended_ns=5))


def test_zombie_tells_its_code(failed: Ended) -> None:
    end = explain(failed.watch, failed.pidfd, NO_TRACES, None, 77)
    assert (end.exit_code, end.exit_signal, end.source, end.at_ns) == (3, None, "zombie", 77)


def test_zombie_tells_its_signal(killed: Ended) -> None:
    end = explain(killed.watch, killed.pidfd, NO_TRACES, None, 77)
    assert (end.exit_code, end.exit_signal, end.source) == (None, 9, "zombie")


def test_who_is_being_reaped_at_this_moment_tells_how_it_ended_as_a_zombie_does(tmp_path: Path) -> None:
    """State X (proc(5)); its pidfd tells only once that is done."""
    proc = FakeProc(tmp_path)
    proc.add(50, uid=os.geteuid())
    watch = ProcessWatch(50, str(proc))
    (tmp_path / "50" / "stat").write_text(stat_line(50, state="X", exit_status=9))
    assert explain(watch, None, NO_TRACES, None, 77).exit_signal == 9


def test_pidfd_tells_the_code_of_a_process_that_was_reaped(failed: Ended) -> None:
    failed.process.wait()
    end = explain(failed.watch, failed.pidfd, NO_TRACES, None, 77)
    if end.source == "unknown":
        pytest.skip("this kernel's pidfd does not tell (before 6.15)")
    assert (end.exit_code, end.source) == (3, "pidfd")


def test_kernel_is_believed_before_the_hook(killed: Ended) -> None:
    assert explain(killed.watch, killed.pidfd, NO_TRACES, last_words(0), 77).exit_signal == 9


def test_hook_is_believed_when_the_kernel_does_not_tell(failed: Ended) -> None:
    failed.process.wait()
    end = explain(failed.watch, None, NO_TRACES, last_words(4), 77)
    assert (end.exit_code, end.source) == (4, "hook")


def test_exit_that_nobody_saw_is_unknown_and_not_zero(failed: Ended) -> None:
    failed.process.wait()
    end = explain(failed.watch, None, NO_TRACES, None, 77)
    assert (end.exit_code, end.exit_signal, end.source, end.out_of_memory) == (None, None, "unknown", None)


def test_zombie_of_another_user_is_unknown_and_not_zero(tmp_path: Path) -> None:
    """The kernel writes exit status 0 where we have no ptrace access, which io's refusal tells."""
    proc = FakeProc(tmp_path)
    proc.add(50, state="Z", io="", uid=os.geteuid() + 1)
    assert explain(ProcessWatch(50, str(proc)), None, NO_TRACES, None, 77).source == "unknown"


def test_zombie_of_our_own_that_left_in_order_tells_it_though_its_files_are_root_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = FakeProc(tmp_path)
    monkeypatch.setattr(os, "getegid", lambda: 7)  # the fake's
    proc.add(50, state="Z", io="", uid=os.geteuid())
    end = explain(ProcessWatch(50, str(proc)), None, NO_TRACES, None, 77)
    assert (end.exit_code, end.source) == (0, "zombie")


@pytest.fixture(autouse=True)
def a_busy_machine_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "_error_files", OneCallAtATime[bool]())
    monkeypatch.setattr(exits, "_ERROR_FILE_SECONDS", 60.0)


def test_an_error_file_on_a_dead_file_server_holds_nobody(failed: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = threading.Event(), threading.Semaphore(0)

    def dead(*_: object, **__: object) -> int:
        asked.release()
        answers.wait(60)
        raise OSError

    monkeypatch.setattr(exits, "_ERROR_FILE_SECONDS", 0.01)
    monkeypatch.setattr(untrusted, "open_in_root", dead)
    failed.process.wait()
    for _ in range(3):
        assert explain(failed.watch, None, Traces("/mnt/error.json", "", None), None, 77).source == "unknown"
    assert not answers.is_set()
    assert asked.acquire(timeout=30)
    assert not asked.acquire(blocking=False), "it is not asked again meanwhile"
    answers.set()


def test_error_file_of_torchrun_tells_that_it_raised(failed: Ended, tmp_path: Path) -> None:
    failed.process.wait()
    error = tmp_path / "error.json"
    error.write_bytes(msgspec.json.encode({"message": {"message": "ValueError: x"}}))
    end = explain(failed.watch, None, Traces(str(error), "", None, uid=os.getuid()), None, 77)
    assert (end.exit_code, end.source) == (1, "torchrun error file")


def test_an_error_file_of_another_user_tells_nothing(failed: Ended, tmp_path: Path) -> None:
    """A rank says where it lies: we would tell whether there is such a file in a folder that is closed to its user."""
    failed.process.wait()
    error = tmp_path / "error.json"
    error.write_bytes(msgspec.json.encode({"message": {"message": "ValueError: x"}}))
    traces = Traces(str(error), "", None, uid=os.getuid() + 1)
    assert explain(failed.watch, None, traces, None, 77).source == "unknown"


def test_whose_process_it_was_is_noted(failed: Ended) -> None:
    assert note_traces(failed.watch).uid == os.getuid()


def memory_events(tmp_path: Path, kills: int) -> str:
    path = tmp_path / "memory.events"
    path.write_text(f"low 0\nhigh 0\nmax 3\noom 1\noom_kill {kills}\n")
    return str(path)


def test_kill_that_the_cgroup_counted_is_out_of_memory(killed: Ended, tmp_path: Path) -> None:
    traces = Traces("", memory_events(tmp_path, 0), 0)
    memory_events(tmp_path, 1)
    assert explain(killed.watch, killed.pidfd, traces, None, 77).out_of_memory is True


def test_kill_that_the_cgroup_did_not_count_is_not(killed: Ended, tmp_path: Path) -> None:
    traces = Traces("", memory_events(tmp_path, 1), 1)
    assert explain(killed.watch, killed.pidfd, traces, None, 77).out_of_memory is False


def test_kill_without_a_cgroup_to_ask_is_not_known_to_be_either(killed: Ended) -> None:
    assert explain(killed.watch, killed.pidfd, NO_TRACES, None, 77).out_of_memory is None


def test_count_explains_a_process_that_left_nothing_else(failed: Ended, tmp_path: Path) -> None:
    failed.process.wait()
    traces = Traces("", memory_events(tmp_path, 0), 0)
    memory_events(tmp_path, 1)
    end = explain(failed.watch, None, traces, None, 77)
    assert (end.exit_signal, end.source, end.out_of_memory) == (9, "cgroup", True)


@pytest.mark.parametrize(
    ("line", "path"),
    [("0::/train", "train/memory.events"), ("4:memory:/train", "memory/train/memory.oom_control")],
)
def test_memory_events_of_both_cgroup_versions_are_found(tmp_path: Path, line: str, path: str) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.add(50)
    (tmp_path / "proc/50/cgroup").write_text(f"9:name=systemd:/\n{line}\n")
    counter = tmp_path / "cgroup" / path
    counter.parent.mkdir(parents=True)
    counter.write_text("under_oom 0\noom_kill 2\n")
    assert note_traces(ProcessWatch(50, str(proc)), str(tmp_path / "cgroup"))[:3] == ("", str(counter), 2)


def test_where_its_output_went_is_noted_while_it_lives(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    with log.open("wb") as file, subprocess.Popen(["/bin/cat"], stdin=-1, stdout=file, stderr=file) as process:
        watch = ProcessWatch(process.pid)
        traces = note_traces(watch)
        process.communicate(b"")
    watch.close()
    assert traces.outputs is not None
    assert traces.outputs.paths == (str(log),)
    assert (traces.outputs.uid, traces.outputs.gid) == (os.getuid(), os.getgid())


def test_output_to_a_pipe_or_a_terminal_is_no_log() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=-1, stdout=-1, stderr=subprocess.DEVNULL) as process:
        watch = ProcessWatch(process.pid)
        assert note_traces(watch).outputs is None
        watch.close()
        process.communicate(b"")
