import os
import sys
from pathlib import Path

import msgspec
import pytest

from stallwatch.captures import profile
from stallwatch.captures.folder import Folder
from stallwatch.captures.profile import ProfileCapture, UsageCapture
from stallwatch.config_sections import CaptureSection
from stallwatch.node.procfs import Stat, parse_stat
from tests.unit.captures.kept import attempts, kept
from tests.unit.outputs.reports import sample
from tests.unit.sensors.fake_proc import FakeProc, stat_line

STACK = "thread (7): MainThread;<module> (/job/train.py:9);load (/job/data.py:41) 30"


def _py_spy(tmp_path: Path, body: str) -> CaptureSection:
    """A py-spy that notes what it is asked, and then does as the test says; `keep` writes to its output."""
    path = tmp_path / "py-spy"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'asked')!r}, 'w').write(' '.join(sys.argv))\n"
        f"def keep(text): open(sys.argv[sys.argv.index('--output') + 1], 'w').write(text)\n{body}"
    )
    path.chmod(0o755)
    return CaptureSection(py_spy=str(path))


def _taken(tmp_path: Path, body: str) -> tuple[ProfileCapture, Path]:
    bundle = tmp_path / "bundle"
    with kept(bundle, 0) as sending:
        capture = ProfileCapture(sample(0), Folder(sending, 0, 1), _py_spy(tmp_path, body))
        capture.take(1)
    return capture, bundle / "ranks" / "0"


def test_a_profile_is_kept_without_what_py_spy_tells_a_person(tmp_path: Path) -> None:
    capture, folder = _taken(tmp_path, f"print('py-spy> Sampling'); keep({STACK + chr(10)!r}); print('py-spy> Wrote')")
    assert (folder / "profile.txt").read_text() == STACK + "\n"
    assert capture.lines == [("/job/train.py", 9), ("/job/data.py", 41)]
    assert [(one.what, one.answered) for one in attempts(folder)] == [("profile", True)]


def test_a_rank_is_never_paused_for_it(tmp_path: Path) -> None:
    _taken(tmp_path, f"keep({STACK!r})")
    asked = (tmp_path / "asked").read_text().split()
    assert {"record", "--nonblocking", "--idle"} <= set(asked)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('Error: Failed to get stack traces')", "its memory changed while it was read"),
        ("print('py-spy> Sampling')", "no stack of process"),
        ("import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); keep('x' * (3 << 20))", "printed more than"),
    ],
    ids=["it fails", "no stack", "endless"],
)
def test_what_is_no_profile_is_noted_and_not_kept(tmp_path: Path, body: str, said: str) -> None:
    capture, folder = _taken(tmp_path, body)
    assert not (folder / "profile.txt").exists()
    (attempt,) = attempts(folder)
    assert not attempt.answered
    assert said in attempt.detail
    assert capture.lines == []


def test_py_spy_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "LATE_SECONDS", -0.5)
    _, folder = _taken(tmp_path, "import time; time.sleep(600)")
    assert "did not answer" in attempts(folder)[0].detail


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    fake = FakeProc(tmp_path)
    fake.add(50)
    return tmp_path


def _counters(proc: Path, *, ticks: int, waited_ns: int, faults: int, read: int) -> None:
    line = stat_line(50, ticks=ticks, start=1000).split()
    line[11] = str(faults)
    for name in ("50/stat", "50/task/50/stat"):
        (proc / name).write_text(" ".join(line))
    (proc / "50/task/50/schedstat").write_text(f"1 {waited_ns} 3")
    (proc / "50/io").write_text(f"rchar: 9\nwchar: 9\nread_bytes: {read}\nwrite_bytes: 0\n")
    (proc / "50/task/50/status").write_text("Name:\tx\nVmSwap:\t  12 kB\nCpus_allowed_list:\t3,8-9\n")


def _line(pid: int, ticks: int, cpu: int, start: int = 5) -> str:
    fields = [str(pid), "(burn)", "R", *["0"] * 49]
    fields[13], fields[21], fields[38] = str(ticks), str(start), str(cpu)
    return " ".join(fields)


def _stat(pid: int, ticks: int, cpu: int, start: int = 5) -> Stat:
    return parse_stat(_line(pid, ticks, cpu, start).encode())


@pytest.mark.parametrize(
    ("held", "wchan", "shares"),
    [("T", "do_signal_stop", (0.25, 0.0)), ("S", "do_freezer_trap", (0.0, 0.25)), ("D", "__refrigerator", (0.0, 0.25))],
)
def test_who_is_held_again_and_again_is_seen_so_at_some_moments(
    proc: Path, held: str, wchan: str, shares: tuple[float, float]
) -> None:
    _counters(proc, ticks=1, waited_ns=0, faults=0, read=0)
    usage = UsageCapture(50, 1000, {}, str(proc))
    line = (proc / "50/task/50/stat").read_text()
    for state, at in ((held, wchan), ("S", "hrtimer_nanosleep"), ("R", "0"), ("S", "futex_wait")):
        (proc / "50/task/50/stat").write_text(line.replace(" S ", f" {state} ", 1))
        (proc / "50/task/50/wchan").write_text(at)
        usage.see()
    taken = usage.taken(1, {}, {})
    assert (taken.stopped_share, taken.frozen_share) == shares
    unseen = UsageCapture(50, 1000, {}, str(proc)).taken(1, {}, {})
    assert (unseen.stopped_share, unseen.frozen_share) == (None, None)


def test_a_quota_that_is_used_up_is_seen_at_its_own_group_or_above(proc: Path) -> None:
    _counters(proc, ticks=1, waited_ns=0, faults=0, read=0)
    (proc / "50/cgroup").write_text("0::/kubepods/pod1/train\n")
    groups = proc / "cgroups"
    (groups / "kubepods/pod1/train").mkdir(parents=True)
    own, pod = groups / "kubepods/pod1/train/cpu.stat", groups / "kubepods/pod1/cpu.stat"
    own.write_text("usage_usec 9\nnr_periods 0\nnr_throttled 0\n")
    pod.write_text("usage_usec 9\nnr_periods 100\nnr_throttled 40\n")
    usage = UsageCapture(50, 1000, {}, str(proc), str(groups))
    assert usage.taken(1, {}, {}).throttled_share is None, "no period has ended"
    pod.write_text("usage_usec 9\nnr_periods 120\nnr_throttled 55\n")
    assert usage.taken(1, {}, {}).throttled_share == 0.75
    (proc / "50/cgroup").unlink()
    assert usage.taken(1, {}, {}).throttled_share is None


def test_usage_is_what_changed_meanwhile(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((100.0, 105.0))
    monkeypatch.setattr("stallwatch.captures.profile.time.monotonic", lambda: next(clock))
    _counters(proc, ticks=100, waited_ns=1_000_000_000, faults=7, read=4096)
    before = {pid: _stat(pid, 0, 3) for pid in (50, 60, 61, 62)}
    usage = UsageCapture(50, 1000, before, str(proc))
    _counters(proc, ticks=100 + 2 * os.sysconf("SC_CLK_TCK"), waited_ns=3_000_000_000, faults=17, read=5_004_096)
    second = os.sysconf("SC_CLK_TCK")
    after = {
        50: _stat(50, 9 * second, 3),
        60: _stat(60, 4 * second, 3),
        61: _stat(61, 4 * second, 4),  # elsewhere
        62: _stat(62, 4 * second, 3, start=6),  # another process by now
        63: _stat(63, 4 * second, 3),  # began meanwhile
    }
    taken = usage.taken(2, {}, after)
    assert (taken.look, taken.seconds) == (2, 5.0)
    assert taken.cpu_share == pytest.approx(0.4)
    assert taken.runnable_share == pytest.approx(0.4)
    assert (taken.major_faults, taken.read_bytes, taken.swapped_bytes) == (10, 5_000_000, 12 << 10)
    assert taken.cpus == (3, 8, 9)
    (beside,) = taken.beside
    assert (beside.pid, beside.command) == (60, "burn")
    assert beside.cpu_share == pytest.approx(0.8)


def test_its_own_children_and_threads_are_told_as_such(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((100.0, 105.0))
    monkeypatch.setattr("stallwatch.captures.profile.time.monotonic", lambda: next(clock))
    _counters(proc, ticks=100, waited_ns=0, faults=0, read=0)
    second = os.sysconf("SC_CLK_TCK")
    rank = msgspec.structs.replace(sample(2), pid=50, start_ticks=1000)
    stats = [
        {50: parse_stat(stat_line(50, start=1000).encode()), 60: _stat(60, ticks, 3)._replace(parent_pid=50)}
        for ticks in (0, 4 * second)
    ]
    (proc / "50/task/53").mkdir()
    (proc / "50/task/53/stat").write_text(_line(53, 0, 3))
    usage = UsageCapture(50, 1000, stats[0], str(proc))
    (proc / "50/task/53/stat").write_text(_line(53, second, 3))
    taken = usage.taken(1, {50: rank}, stats[1])
    assert [(one.pid, one.kin, one.rank) for one in taken.beside] == [(60, "child", 2), (53, "thread", 2)]


def test_what_the_system_does_not_tell_stays_unknown(proc: Path) -> None:
    _counters(proc, ticks=0, waited_ns=0, faults=0, read=0)
    (proc / "50/task/50/schedstat").unlink()
    (proc / "50/io").write_text("")
    taken = UsageCapture(50, 1000, {}, str(proc)).taken(1, {}, {})
    assert (taken.runnable_share, taken.read_bytes) == (None, None)
    assert taken.cpu_share == 0.0


def test_a_pid_that_is_another_process_by_now_is_refused(proc: Path) -> None:
    _counters(proc, ticks=0, waited_ns=0, faults=0, read=0)
    with pytest.raises(ProcessLookupError):
        UsageCapture(50, 999, {}, str(proc))
