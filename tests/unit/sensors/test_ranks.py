import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import RankSample
from stallwatch.sensors import ranks
from stallwatch.sensors.environ import RankNames
from stallwatch.sensors.ranks import RanksSensor
from stallwatch.sensors.sensor import Options
from stallwatch.sensors.slow_reads import SlowReads
from tests.builders.clock import FakeClock
from tests.builders.records import start_ticks_of, write_record


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000_000_000, look_takes_ns=1)


@pytest.fixture
def sensor(tmp_path: Path, clock: FakeClock) -> Iterator[RanksSensor]:
    sensor = RanksSensor(
        Options((str(tmp_path),), keep_ended_seconds=100, discover_seconds=3600), monotonic_ns=clock.monotonic_ns
    )
    sensor.read()
    yield sensor
    sensor.close()


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def of_job(sensor: RanksSensor) -> list[RankSample]:
    return [sample for sample in sensor.read().ranks if sample.job.training_job == "job"]


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_rank_is_its_record_and_its_process(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    (sample,) = of_job(sensor)
    assert (sample.rank, sample.pid, sample.job.epoch) == (1, process.pid, "epoch")
    assert isinstance(sample.heartbeat, Known)
    assert sample.heartbeat.value.step == 5
    assert isinstance(sample.process, Known)
    assert sample.end is None


def test_who_turned_out_to_be_beside_a_rank_is_followed_no_more_and_a_hook_proves_one(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = process.pid, start_ticks_of(process.pid)
    sensor.followed.follow(*key, RankNames(1, 1, 2, "job", "epoch"))
    assert [sample.pid for sample in of_job(sensor)] == [process.pid]
    monkeypatch.setattr(SlowReads, "beside", lambda _: frozenset((key,)))
    assert of_job(sensor) == []
    write_record(tmp_path, 1, *key)
    assert [sample.pid for sample in (*of_job(sensor), *of_job(sensor))] == [process.pid] * 2


def test_end_is_seen_with_its_signal_and_keeps_the_last_record(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    of_job(sensor)
    kill(process)
    (sample,) = of_job(sensor)
    assert sample.end is not None
    assert (sample.end.exit_signal, sample.end.source) == (9, "zombie")
    assert isinstance(sample.process, Unavailable)
    assert isinstance(sample.heartbeat, Known)


def test_of_a_rank_that_has_ended_nothing_is_held_open(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """It stays for two minutes: 70 that had ended were 500 handles."""
    before = set(os.listdir("/proc/self/fd"))
    path = write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    of_job(sensor)
    while_alive = set(os.listdir("/proc/self/fd"))
    kill(process)
    first, second = of_job(sensor), of_job(sensor)
    assert [sample.end is not None for sample in (*first, *second)] == [True, True]
    left = {number: os.readlink(f"/proc/self/fd/{number}") for number in _open_now() - before}
    assert len(while_alive - before) >= 6
    # What else is open now is of other tests' threads: some read of their processes at any time.
    of_rank = (f"/proc/{process.pid}/", "anon_inode:[pidfd]", str(tmp_path))
    assert [name for name in left.values() if name.startswith(of_rank) and name != str(path)] == []


def _open_now() -> set[str]:
    return {number for number in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{number}")}


def test_ended_rank_stays_for_the_grace_and_then_its_files_go(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path, clock: FakeClock
) -> None:
    path = write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    of_job(sensor)
    kill(process)
    assert len(of_job(sensor)) == 1
    clock.advance(99)
    assert len(of_job(sensor)) == 1
    assert path.exists()
    clock.advance(2)
    of_job(sensor)
    assert not path.exists()
    assert of_job(sensor) == []


def test_ended_rank_stays_while_others_of_its_job_live(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path, clock: FakeClock
) -> None:
    write_record(tmp_path, 0, os.getpid(), start_ticks_of(os.getpid()))
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    of_job(sensor)
    kill(process)
    of_job(sensor)
    clock.advance(1000)
    assert [(sample.rank, sample.end is not None) for sample in of_job(sensor)] == [(0, False), (1, True)]


def test_record_that_was_removed_leaves_a_rank_about_which_it_is_said(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    path = write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    of_job(sensor)
    path.unlink()
    (sample,) = of_job(sensor)
    assert isinstance(sample.heartbeat, Unavailable)
    assert "was removed" in sample.heartbeat.reason
    assert isinstance(sample.process, Known)


def test_child_of_a_rank_is_no_rank(sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid), is_child=1)
    assert of_job(sensor) == []


def test_record_that_claims_the_process_of_another_user_is_not_believed(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can write a record for another user")
    path = write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    os.chown(path, 65534, 65534)
    assert of_job(sensor) == []
    look = sensor.read()
    assert f"written by uid 65534, but process {process.pid} runs as 0" in look.heartbeats.reason
    assert look.heartbeats.errors_total == 1


def test_record_of_a_pid_that_was_used_again_is_no_rank(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path, clock: FakeClock
) -> None:
    path = write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid) - 1)
    assert of_job(sensor) == []
    clock.advance(101)
    of_job(sensor)
    assert not path.exists()


def test_rank_that_ended_while_we_were_away_is_a_death_of_a_living_job(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    write_record(tmp_path, 0, process.pid, start_ticks_of(process.pid))
    write_record(tmp_path, 1, 2**22 + 1, 5, pulse_ns=500)
    write_record(tmp_path, 0, 2**22 + 2, 5, epoch="an older life")
    samples = of_job(sensor)
    assert [(sample.rank, sample.job.epoch) for sample in samples] == [(0, "epoch"), (1, "epoch")]
    assert samples[1].end is not None
    assert samples[1].end.source == "unknown"


NO_SUCH_PID = 4_194_303  # just below PID_MAX_LIMIT


def test_a_record_that_moves_without_a_process_to_be_seen_is_a_rank_that_is_not_gone(
    sensor: RanksSensor, clock: FakeClock, tmp_path: Path
) -> None:
    for second in range(0, 40, 10):
        clock.now_ns = 1_000_000_000 * (100 + second)
        write_record(tmp_path, 1, NO_SUCH_PID, 7, pulse_ns=clock.now_ns)
        look = sensor.read()
    (sample,) = look.ranks
    assert (sample.rank, sample.end) == (1, None)
    assert isinstance(sample.heartbeat, Known)
    assert isinstance(sample.process, Unavailable)
    assert "hidepid" in sample.process.reason
    assert (look.processes.up, "hidepid" in look.processes.reason) == (False, True)
    clock.advance(99)
    assert of_job(sensor), "it may be stopped, or hold the GIL"
    clock.advance(102)
    assert not of_job(sensor)


def test_a_record_that_is_left_of_a_dead_process_does_not_move(
    sensor: RanksSensor, clock: FakeClock, tmp_path: Path
) -> None:
    write_record(tmp_path, 1, NO_SUCH_PID, 7, pulse_ns=clock.now_ns)
    for _ in range(4):
        clock.advance(10)
        assert not of_job(sensor)


def test_foreign_files_do_not_disturb_a_rank(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    (tmp_path / "rank-0-1.beat").write_bytes(b"garbage")
    (tmp_path / "notes.txt").touch()
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    look = sensor.read()
    assert [sample.rank for sample in look.ranks if sample.job.training_job == "job"] == [1]
    assert look.heartbeats.up
    assert "1 ignored: rank-0-1.beat" in look.heartbeats.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's file needs root")
def test_another_users_record_about_a_rank_that_is_followed_changes_nothing(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    ticks = start_ticks_of(process.pid)
    write_record(tmp_path, 1, process.pid, ticks)
    of_job(sensor)
    for rank in (0, 5):  # sorted before and behind the real one
        os.chown(write_record(tmp_path, rank, process.pid, ticks, step=99), 65534, 65534)
    for _ in range(2):
        assert [(sample.rank, sample.end) for sample in of_job(sensor)] == [(1, None)]
    assert sensor.read().heartbeats.reason.count("written by uid 65534") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's file needs root")
def test_another_user_cannot_add_a_death_to_a_job(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    os.chown(write_record(tmp_path, 0, 2**22 + 5, 77), 65534, 65534)
    for _ in range(2):
        assert [(sample.rank, sample.end) for sample in of_job(sensor)] == [(1, None)]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process needs root")
def test_two_users_who_name_their_jobs_alike_have_two_jobs(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    other = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=65534, group=65534, extra_groups=[])
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    of_job(sensor)
    os.chown(write_record(tmp_path, 0, other.pid, start_ticks_of(other.pid)), 65534, 65534)
    try:
        for _ in range(2):
            assert {(sample.rank, sample.job.owner) for sample in of_job(sensor)} == {(1, "root"), (0, "nobody")}
    finally:
        other.communicate()


def test_the_older_of_two_records_of_a_process_is_not_another_rank(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    ticks = start_ticks_of(process.pid)
    write_record(tmp_path, 0, process.pid, ticks, pulse_ns=10)
    write_record(tmp_path, 3, process.pid, ticks, pulse_ns=20)
    for _ in range(2):
        assert [(sample.rank, sample.end) for sample in of_job(sensor)] == [(3, None)]


def test_a_stop_and_a_death_are_news_that_do_not_wait_for_a_request(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    assert of_job(sensor)
    reading, writing = os.pipe()
    for signal_number in (signal.SIGSTOP, signal.SIGCONT):
        process.send_signal(signal_number)
        assert not sensor.wait(reading)
    kill(process)
    assert not sensor.wait(reading)
    os.write(writing, b"!")
    assert sensor.wait(reading)
    for descriptor in (reading, writing):
        os.close(descriptor)


def started(count: int) -> "list[subprocess.Popen[bytes]]":
    return [subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, start_new_session=True) for _ in range(count)]


def test_a_user_whose_processes_take_long_to_read_has_each_looked_at_in_its_turn(
    sensor: RanksSensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_MOST_CPU_OF_USER", -1.0)
    mine = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(3)]
    try:
        for number, one in enumerate(mine):
            write_record(tmp_path, number, one.pid, start_ticks_of(one.pid))
        sensor.read()
        monkeypatch.setattr(ranks, "_MOST_CPU_OF_USER", 0.0)
        seen = set()
        for _ in range(3):
            samples = of_job(sensor)
            known = [sample.pid for sample in samples if isinstance(sample.process, Known)]
            assert (len(samples), len(known)) == (3, 1)
            seen |= set(known)
            (late, _) = (one.process for one in samples if isinstance(one.process, Unavailable))
            assert "the others of uid" in late.reason
        assert seen == {one.pid for one in mine}
    finally:
        for one in mine:
            one.kill()
            one.communicate()


def test_two_processes_of_one_rank_are_two_jobs(sensor: RanksSensor, tmp_path: Path) -> None:
    first, second = processes = started(2)
    try:
        for process in processes:
            write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
        told = {sample.pid: sample.job.epoch for sample in of_job(sensor)}
        assert sorted(told.values()) == ["epoch", "epoch (2)"]
        kill(first)
        after = {sample.pid: (sample.job.epoch, sample.end is None) for sample in of_job(sensor)}
        assert after == {first.pid: (told[first.pid], False), second.pid: (told[second.pid], True)}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_job_that_is_started_again_under_its_address_has_not_its_old_deaths(
    sensor: RanksSensor, tmp_path: Path
) -> None:
    first = started(2)
    for rank, process in enumerate(first):
        write_record(tmp_path, rank, process.pid, start_ticks_of(process.pid))
    assert len(of_job(sensor)) == 2
    for process in first:
        kill(process)
    assert [sample.end is None for sample in of_job(sensor)] == [False, False]
    (again,) = started(1)
    try:
        write_record(tmp_path, 0, again.pid, start_ticks_of(again.pid))
        for _ in range(2):
            assert {sample.pid for sample in of_job(sensor) if sample.rank == 0} == {again.pid}
    finally:
        for process in (*first, again):
            process.kill()
            process.communicate()


def test_a_record_of_an_earlier_life_is_no_death_of_the_job_that_runs_now(
    sensor: RanksSensor, process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    (dead,) = started(1)
    ticks = start_ticks_of(dead.pid)
    dead.kill()
    dead.communicate()
    write_record(tmp_path, 0, dead.pid, ticks, pulse_ns=0, ended=1, ended_ns=-(10**18), exit_code=0)
    write_record(tmp_path, 1, process.pid, start_ticks_of(process.pid))
    assert [(sample.rank, sample.end) for sample in of_job(sensor)] == [(1, None)]
