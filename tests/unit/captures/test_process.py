from pathlib import Path

import pytest

from stallwatch.captures.process import (
    NOTHING_YET,
    OwnBytes,
    ended,
    look_at,
    of_same_user,
    own_bytes_since,
    wakes_of,
    with_answers,
    with_own_wakes,
    without,
)
from stallwatch.hook.layout import PUBLISH_NS, RECORD_BYTES
from stallwatch.model.evidence import ChildProcess, ProcessLook
from stallwatch.model.snapshot import ProcessEnd
from tests.builders.node import unread_rank
from tests.unit.sensors.fake_proc import FakeProc, stat_line


def test_every_thread_is_looked_at(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50, state="S", ticks=44)
    (tmp_path / "50/task/50/wchan").write_text("futex_do_wait")
    thread = tmp_path / "50/task/60"
    thread.mkdir()
    (thread / "stat").write_text(stat_line(60, command="pt_nccl_watchdg", state="R", ticks=12))
    (thread / "wchan").write_text("0")
    (thread / "status").write_text("Name:\tx\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t3\n")
    (thread / "io").write_text("rchar: 40\nwchar: 2\n")
    look = look_at(50, 1000, 1, str(proc))
    assert [(t.tid, t.name, t.state, t.cpu_ticks, t.wchan) for t in look.threads] == [
        (50, "python", "S", 44, "futex_do_wait"), (60, "pt_nccl_watchdg", "R", 12, None),
    ]  # fmt: skip
    assert look.threads[1].wakes == 17
    assert [thread.moved_bytes for thread in look.threads] == [None, 42]
    assert (look.state, look.wchan, look.cpu_ticks, look.read_bytes) == ("S", "futex_do_wait", 44, 5)


def test_what_the_programs_of_a_child_used_that_have_ended_is_told_beside_its_own(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50, children=(51,), reaped=9000)
    proc.add(51, parent=50, command="sh", ticks=12, reaped=400)
    look = look_at(50, 1000, 1, str(proc))
    assert [(child.cpu_ticks, child.reaped_ticks) for child in look.children] == [(12, 400)]
    assert look.cpu_ticks == 30


def test_what_a_child_has_read_and_written_is_told(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50, children=(51, 52))
    for child in (51, 52):
        proc.add(child, parent=50, command="curl")
    (tmp_path / "51/io").write_text("rchar: 40\nwchar: 2\n")
    (tmp_path / "52/io").unlink(missing_ok=True)
    assert [child.moved_bytes for child in look_at(50, 1000, 1, str(proc)).children] == [42, None]


def test_who_is_held_for_a_moment_is_looked_at_when_it_is_let_go(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    pauses: list[float] = []
    proc.add(50, state="t")

    def lets_go(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            proc.add(50, state="S")

    assert look_at(50, 1000, 1, str(proc), pause=lets_go).state == "S"


def test_who_is_held_by_a_debugger_stays_so(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    pauses: list[float] = []
    proc.add(50, state="t")
    assert look_at(50, 1000, 1, str(proc), pause=pauses.append).state == "t"
    assert 0.5 < sum(pauses) < 2.0  # a look of processes has two seconds


def test_ids_in_a_namespace_of_its_own_are_kept(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50)
    (tmp_path / "50/task/50/wchan").write_text("0")
    lines = (tmp_path / "50/status").read_text().splitlines()
    inner = "\n".join([*(line for line in lines if not line.startswith("NSpid")), "NSpid:\t50\t1", ""])
    for path in ("50/status", "50/task/50/status"):
        (tmp_path / path).write_text(inner)
    (thread,) = look_at(50, 1000, 1, str(proc)).threads
    assert (thread.tid, thread.namespace_tid) == (50, 1)


def test_pid_that_belongs_to_another_process_now_is_refused(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50, start=1001)
    with pytest.raises(ProcessLookupError, match="another process"):
        look_at(50, 1000, 1, str(proc))


@pytest.mark.parametrize(
    ("end", "source", "signal"),
    [(ProcessEnd(9, None, 9, "zombie", True), "zombie", 9), (None, "unknown", None)],
)
def test_end_is_told_as_far_as_it_is_known(end: ProcessEnd | None, source: str, signal: int | None) -> None:
    look = ended(unread_rank(0, 50, start_ticks=1000, end=end), 2)
    assert (look.state, look.exit_source, look.exit_signal, look.look) == ("X", source, signal, 2)
    assert look.ended_ns == (9 if end else None), "by when it was seen to be gone is not when it went"


def until_now(before: ProcessLook) -> OwnBytes:
    own = OwnBytes(before.own_read_bytes, before.own_write_bytes)
    return own_bytes_since(own, before.at_ns, False, 10**18)


def moved(proc: Path, read: int, written: int) -> None:
    (proc / "50/io").write_text(f"rchar: {read}\nwchar: {written}\n")


def test_what_a_rank_reads_and_writes_to_answer_us_is_no_work_of_its_own(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50)
    moved(tmp_path, 1_000, 2_000)
    first = look_at(50, 1000, 1, str(tmp_path))
    moved(tmp_path, 31_000, 2_500)  # it dumped its recorder for us
    first = with_answers(first, 50, str(tmp_path))
    moved(tmp_path, 31_007, 2_509)
    second = without(look_at(50, 1000, 2, str(tmp_path)), until_now(first))
    assert (first.read_bytes, first.write_bytes) == (1_000, 2_000)
    assert (second.read_bytes, second.write_bytes) == (1_007, 2_009)
    moved(tmp_path, 61_007, 2_510)
    second = with_answers(second, 50, str(tmp_path))
    moved(tmp_path, 61_009, 2_513)
    third = without(look_at(50, 1000, 3, str(tmp_path)), until_now(second))
    assert (third.read_bytes, third.write_bytes) == (1_009, 2_012)


def test_what_our_own_pause_wakes_is_no_end_of_a_wait(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50)
    (tmp_path / "50/task/50/wchan").write_text("wait_woken")
    status = tmp_path / "50/task/50/status"
    status.write_text("Name:\tx\nvoluntary_ctxt_switches:\t7\n")
    look = look_at(50, 1000, 1, str(tmp_path))
    before = wakes_of(look, str(tmp_path))
    status.write_text("Name:\tx\nvoluntary_ctxt_switches:\t9\n")
    look = with_own_wakes(look, before, wakes_of(look, str(tmp_path)))
    assert [(t.wakes, t.own_wakes) for t in look.threads if t.tid == 50] == [(7, 2)]


def test_records_of_the_hook_are_no_work_of_the_rank(tmp_path: Path) -> None:
    FakeProc(tmp_path).add(50)
    before = look_at(50, 1000, 1, str(tmp_path))
    assert before.at_ns is not None
    later_ns = before.at_ns + 10 * 10**9
    published = int(10 * 10**9 * RECORD_BYTES / PUBLISH_NS)
    assert own_bytes_since(NOTHING_YET, before.at_ns, True, later_ns).written == published
    assert own_bytes_since(NOTHING_YET, before.at_ns, False, later_ns).written == 0


def test_children_that_run_as_somebody_else_are_not_looked_into(tmp_path: Path) -> None:
    """What a rank has started by sudo is root's."""
    proc = FakeProc(tmp_path)
    for pid, uid in ((100, 1000), (101, 1000), (102, 0), (103, 1001)):
        proc.add(pid, uid=uid)
    children = tuple(ChildProcess(pid, "S") for pid in (101, 102, 103, 104))
    assert [child.pid for child in of_same_user(100, children, str(proc))] == [101]
    assert of_same_user(99, children, str(proc)) == ()


def test_what_was_ours_is_taken_off_later() -> None:
    look = ProcessLook(source="/proc/7", look=2, pid=7, state="S", cpu_ticks=1, read_bytes=100, write_bytes=None)
    less = without(look, OwnBytes(30, 4))
    assert (less.read_bytes, less.write_bytes, less.own_read_bytes, less.own_write_bytes) == (70, None, 30, 4)
