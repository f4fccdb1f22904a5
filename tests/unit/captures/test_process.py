from pathlib import Path

import pytest

from stallwatch.captures.process import ended, look_at
from stallwatch.model.reading import Unavailable
from stallwatch.model.snapshot import JobKey, ProcessEnd, RankSample
from tests.unit.sensors.fake_proc import FakeProc, stat_line


def test_every_thread_is_looked_at(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(50, state="S", ticks=44)
    (tmp_path / "50/task/50/wchan").write_text("futex_do_wait")
    thread = tmp_path / "50/task/60"
    thread.mkdir()
    (thread / "stat").write_text(stat_line(60, command="pt_nccl_watchdg", state="R", ticks=12))
    (thread / "wchan").write_text("0")
    look = look_at(50, 1000, 1, str(proc))
    assert [(t.tid, t.name, t.state, t.cpu_ticks, t.wchan) for t in look.threads] == [
        (50, "python", "S", 44, "futex_do_wait"), (60, "pt_nccl_watchdg", "R", 12, None),
    ]  # fmt: skip
    assert (look.state, look.wchan, look.cpu_ticks, look.read_bytes) == ("S", "futex_do_wait", 44, 5)


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
    nothing = Unavailable("ended", 0)
    sample = RankSample(JobKey("j", "e"), 0, 0, 1, 50, 1000, nothing, nothing, end)
    look = ended(sample, 2)
    assert (look.state, look.exit_source, look.exit_signal, look.look) == ("X", source, signal, 2)
    assert look.ended_ns is not None
