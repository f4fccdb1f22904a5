import os
import time
from collections.abc import Callable
from pathlib import Path

from stallwatch.sensors.environ import RankNames
from stallwatch.sensors.hookless import KnownRank
from stallwatch.sensors.slow_reads import SlowReads
from tests.builders.clock import FakeClock
from tests.builders.records import start_ticks_of
from tests.unit.sensors.fake_proc import FakeProc


def test_what_was_asked_for_a_process_that_nobody_follows_any_more_is_forgotten() -> None:
    """Ranks come and go before their slow reads do."""
    own = (os.getpid(), start_ticks_of(os.getpid()))
    reads = SlowReads("/proc", 3600.0)
    gone = [(2**22 + number, 1) for number in range(50)]
    for asked in (*gone, own):
        reads.want(*asked)
    while own not in reads._facts:
        time.sleep(0.01)  # the test's own time limit bounds this
    reads.keep({own})
    assert list(reads._facts) == [own]
    assert reads.take(*own) is not None


def wait_until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)  # the test's own time limit bounds this


def test_a_process_whose_memory_cannot_be_read_is_left_out_and_costs_no_other_its_facts(tmp_path: Path) -> None:
    proc, clock = FakeProc(tmp_path), FakeClock()
    for pid in (70, 71):
        proc.add(pid, environment="STALLWATCH_JOB=a")
    (tmp_path / "70/environ").unlink()
    os.mkfifo(tmp_path / "70/environ")  # whoever opens it waits
    reads = SlowReads(str(proc), 3600.0, clock.monotonic_ns)
    wait_until(lambda: reads._search.reading == 70)
    for pid in (70, 71):
        reads.want(pid, 1000)
    clock.now_ns = 40 * 10**9
    assert "for 40 s: no command lines" in reads.problem()
    reads.keep({(70, 1000), (71, 1000)})
    wait_until(lambda: (71, 1000) in reads._facts)
    assert reads.problem() == "the memory of process 70 cannot be read, which is left out"
    with open(tmp_path / "70/environ", "wb"):  # it answers at last, too late
        pass
    assert reads.take(70, 1000) is None


def test_whose_children_there_are_is_known_by_the_search_for_some_seconds(tmp_path: Path) -> None:
    proc, clock = FakeProc(tmp_path), FakeClock()
    proc.add(70)
    proc.add(71, parent=70)
    reads = SlowReads(str(proc), 0.01, clock.monotonic_ns)
    assert reads.children_of(70) is None, "nobody has asked for that process yet"
    reads.known = {70: KnownRank(RankNames(0, 0, 1, "a", ""))}
    clock.now_ns = 10**9
    wait_until(lambda: reads.children_of(70) is not None)
    assert reads.children_of(70) == (71,)
    reads.known = {}
    clock.now_ns = 2 * 10**9
    wait_until(lambda: reads.children_of(70) is None)


def test_whose_children_there_are_is_not_known_by_a_search_that_hangs_or_leaves_processes_out(tmp_path: Path) -> None:
    proc, clock = FakeProc(tmp_path), FakeClock()
    proc.add(70, environment="STALLWATCH_JOB=a")
    proc.add(71, parent=70)
    reads = SlowReads(str(proc), 1.0, clock.monotonic_ns)
    reads.known = {70: KnownRank(RankNames(0, 0, 1, "a", ""))}
    clock.now_ns = 2 * 10**9
    wait_until(lambda: reads.children_of(70) is not None)
    proc.add(72, environment="STALLWATCH_JOB=a")
    (tmp_path / "72/environ").unlink()
    os.mkfifo(tmp_path / "72/environ")  # whoever opens it waits
    clock.now_ns = 4 * 10**9
    wait_until(lambda: reads._search.reading == 72)
    assert reads.children_of(70) == (71,)
    clock.now_ns = 13 * 10**9
    assert reads.children_of(70) is None
    clock.now_ns = 45 * 10**9
    reads.keep(())  # it is left behind, and another search goes on without that process
    assert reads.children_of(70) is None
    with open(tmp_path / "72/environ", "wb"):
        pass
