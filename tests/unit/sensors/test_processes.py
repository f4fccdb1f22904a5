import os
from pathlib import Path

import pytest

from stallwatch.sensors.processes import ProcessWatch
from tests.unit.sensors.fake_proc import FakeProc


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_sample_says_what_proc_says(proc: FakeProc) -> None:
    proc.add(50, state="D", wchan="nfs_wait_on_request", terminal=34816, tracer=9, ticks=44, reaped=7)
    sample = ProcessWatch(50, str(proc)).sample()
    assert (sample.state, sample.main_thread_state, sample.wchan) == ("D", "D", "nfs_wait_on_request")
    assert (sample.cpu_ticks, sample.main_thread_cpu_ticks, sample.reaped_ticks) == (44, 44, 7)
    assert (sample.tracer_pid, sample.has_terminal) == (9, True)
    assert (sample.read_bytes, sample.write_bytes) == (5, 6)


def test_rank_whose_launcher_runs_in_a_terminal_runs_in_it_though_it_leads_a_session(proc: FakeProc) -> None:
    proc.add(40, command="torchrun", terminal=34816)
    proc.add(50, parent=40)
    proc.add(60, parent=41)
    assert ProcessWatch(50, str(proc)).sample().has_terminal
    assert not ProcessWatch(60, str(proc)).sample().has_terminal


def test_open_files_are_counted_beside_their_limit_and_unknown_where_they_are_not_ours(
    proc: FakeProc, tmp_path: Path
) -> None:
    proc.add(50)
    for number in range(7):
        (tmp_path / "50/fd").mkdir(exist_ok=True)
        (tmp_path / f"50/fd/{number}").touch()
    (tmp_path / "50/limits").write_text(
        "Limit  Soft Limit  Hard Limit  Units\nMax open files   1024   524288   files\n"
    )
    proc.add(60)
    mine, other = ProcessWatch(50, str(proc)), ProcessWatch(60, str(proc))
    assert mine.sample().open_files == (7, 1024)
    assert other.sample().open_files is None


def test_counters_that_are_not_ours_to_read_are_unknown(proc: FakeProc) -> None:
    proc.add(50, io="")
    sample = ProcessWatch(50, str(proc)).sample()
    assert (sample.read_bytes, sample.write_bytes) == (None, None)


def test_children_and_their_children_are_seen(proc: FakeProc) -> None:
    proc.add(50, children=(51, 52))
    proc.add(51, parent=50, state="D", command="pt_data_worker", ticks=12, children=(53,))
    proc.add(52, parent=50)
    proc.add(53, parent=51, command="decoder")
    children = ProcessWatch(50, str(proc)).sample().children
    assert [(child.pid, child.command) for child in children] == [
        (51, "pt_data_worker"), (52, "python"), (53, "decoder"),
    ]  # fmt: skip
    assert (children[0].state, children[0].cpu_ticks) == ("D", 12)


def test_what_the_programs_of_a_child_used_that_have_ended_is_told_beside_its_own(proc: FakeProc) -> None:
    """A shell script, make, `xargs -P`: who computes lives for some milliseconds, and is seen at no tick."""
    proc.add(50, children=(51,))
    proc.add(51, parent=50, command="sh", ticks=12, reaped=400)
    child = ProcessWatch(50, str(proc)).sample().children[0]
    assert (child.cpu_ticks, child.reaped_ticks) == (12, 400)


def test_child_whose_pid_belongs_to_somebody_else_by_now_is_left_out(proc: FakeProc) -> None:
    proc.add(50, children=(51,))
    proc.add(51, parent=1)
    assert ProcessWatch(50, str(proc)).sample().children == ()


def test_child_of_another_thread_is_seen(proc: FakeProc, tmp_path: Path) -> None:
    proc.add(50)
    thread = tmp_path / "50/task/60"
    thread.mkdir()
    (thread / "children").write_text("51")
    proc.add(51, parent=50)
    assert [child.pid for child in ProcessWatch(50, str(proc)).sample().children] == [51]


def test_threads_are_not_asked_for_children_that_are_known(proc: FakeProc, tmp_path: Path) -> None:
    proc.add(50, children=(52,))
    (tmp_path / "50/task/60").mkdir()
    os.mkfifo(tmp_path / "50/task/60/children")  # whoever opens it waits
    proc.add(51, parent=50)
    proc.add(52, parent=50)
    proc.add(53, parent=1)
    watch = ProcessWatch(50, str(proc))
    assert [child.pid for child in watch.sample(children=(51, 53)).children] == [52, 51]
    assert [child.pid for child in watch.sample().children] == [52, 51], "what was known was not kept"


def test_process_that_is_not_there_is_said(proc: FakeProc) -> None:
    with pytest.raises(ProcessLookupError):
        ProcessWatch(50, str(proc))


@pytest.mark.parametrize(
    ("command", "parent", "seen"),
    [("py-spy", os.getppid(), 0), ("py-spy", 7, 9), ("gdb", os.getppid(), 9)],
    ids=["a capture's", "a person's own", "a debugger"],
)
def test_the_tracer_of_a_capture_is_no_debugger(tmp_path: Path, command: str, parent: int, seen: int) -> None:
    """It is started by a capture, whose parent is that of who reads this."""
    proc = FakeProc(tmp_path)
    proc.add(50, tracer=9)
    proc.add(9, command=command, parent=8)
    proc.add(8, parent=parent)
    assert ProcessWatch(50, str(proc)).sample().tracer_pid == seen


def test_a_tracer_that_has_gone_by_then_is_told_all_the_same(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50, tracer=9)
    assert ProcessWatch(50, str(proc)).sample().tracer_pid == 9


@pytest.mark.parametrize("one_read_bytes", [4096, 4])
def test_children_are_seen_whether_one_read_gives_them_all_or_not(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, one_read_bytes: int
) -> None:
    monkeypatch.setattr("stallwatch.node.procfs._AGAIN_BYTES", one_read_bytes)
    proc.add(50, children=(51, 52))
    proc.add(51, parent=50)
    proc.add(52, parent=50)
    watch = ProcessWatch(50, str(proc))
    for _ in range(2):
        assert [child.pid for child in watch.sample().children] == [51, 52]


def test_who_runs_waits_nowhere(proc: FakeProc) -> None:
    proc.add(50, state="R", wchan="futex_do_wait")
    assert ProcessWatch(50, str(proc)).sample().wchan is None
