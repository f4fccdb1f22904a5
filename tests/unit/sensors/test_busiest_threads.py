from pathlib import Path

import pytest

from stallwatch.model.snapshot import ThreadSample
from stallwatch.node.procfs import ProcessDirectory
from stallwatch.sensors.busiest_threads import BusiestThreads
from tests.unit.sensors.fake_proc import FakeProc

STATUS = "Name:\tpython\nUid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t{}\n"


class Threads:
    """A process with threads, as files."""

    def __init__(self, root: Path) -> None:
        FakeProc(root).add(50)
        self.task = root / "50/task"
        self.run(50, 0)
        self.busiest = BusiestThreads(ProcessDirectory(50, str(root)))

    def run(self, tid: int, run_ns: int, name: str = "python", wakes: int = 7) -> None:
        folder = self.task / str(tid)
        folder.mkdir(exist_ok=True)
        (folder / "schedstat").write_text(f"{run_ns} 5 6\n")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "status").write_text(STATUS.format(wakes))

    def read(self, times: int = 1) -> list[int]:
        for _ in range(times - 1):
            self.busiest.read()
        return [sample.tid for sample in self.busiest.read()]


@pytest.fixture
def threads(tmp_path: Path) -> Threads:
    return Threads(tmp_path)


def test_the_main_thread_is_first_and_the_busiest_follow(threads: Threads) -> None:
    for number in range(12):
        threads.run(100 + number, 1000 * number)
    assert threads.read() == [50, 111, 110, 109, 108, 107, 106, 105, 104]


def test_what_is_chosen_stays_while_it_stands_and_who_does_more_comes_in(threads: Threads) -> None:
    for number in range(8):
        threads.run(100 + number, 1000)
    assert threads.read() == [50, 107, 106, 105, 104, 103, 102, 101, 100]
    threads.run(200, 5000)
    assert 200 not in threads.read(9)
    assert threads.read() == [50, 200, 107, 106, 105, 104, 103, 102, 101]
    threads.run(300, 4000)
    assert 300 in threads.read(10)
    threads.run(400, 4500)
    assert 400 in threads.read(10)
    threads.run(500, 4600)
    assert 500 not in threads.read(29)
    assert 500 in threads.read()


def test_who_carries_the_collectives_of_gloo_is_marked(threads: Threads) -> None:
    threads.run(100, 9000, "pt_gloo_runloop")
    threads.run(101, 8000, "pt_nccl_watchdg")
    assert threads.busiest.read() == (
        ThreadSample(50, 0), ThreadSample(100, 9000, communicates=True), ThreadSample(101, 8000),
    )  # fmt: skip


def test_who_carries_them_is_seen_beside_a_pool_that_is_busier(threads: Threads) -> None:
    """Eleven threads of OpenMP do more than gloo's: nobody was seen to communicate."""
    for number in range(11):
        threads.run(100 + number, 9000)
    for number in range(4):
        threads.run(200 + number, 10 * number, "pt_gloo_runloop")
    assert [sample.tid for sample in threads.busiest.read() if sample.communicates] == [203, 202]


def test_a_thread_that_takes_its_name_after_it_was_listed_is_known(threads: Threads) -> None:
    """Listed in the moment before it named itself, it was never known to carry collectives."""
    threads.run(100, 9000)
    threads.read(10)
    threads.run(100, 9500, "pt_gloo_runloop")
    assert threads.busiest.read() == (ThreadSample(50, 0), ThreadSample(100, 9500, communicates=True))


def test_only_who_may_spin_is_asked_how_often_it_slept(threads: Threads) -> None:
    threads.run(100, 10**9)
    assert [sample.wakes for sample in threads.busiest.read()] == [None, None]
    threads.run(100, 15 * 10**8, wakes=9)
    threads.run(50, 499_999_999)
    assert [sample.wakes for sample in threads.busiest.read()] == [None, 9]


def test_a_thread_that_has_ended_is_left_out(threads: Threads) -> None:
    threads.run(100, 9000)
    threads.read()
    for file in (threads.task / "100").iterdir():
        file.unlink()
    (threads.task / "100").rmdir()
    assert threads.read(10) == [50]


def test_without_its_main_thread_nothing_is_told(threads: Threads) -> None:
    threads.run(100, 9000)
    (threads.task / "50/schedstat").unlink()
    assert threads.read() == []
    threads.run(50, 1)
    assert threads.read() == [50, 100]


def test_threads_that_are_not_ours_to_list_cost_nothing_else(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[str]:
        raise PermissionError

    monkeypatch.setattr(ProcessDirectory, "names", refuse)
    assert threads.busiest.read() == ()


def test_a_kernel_that_does_not_tell_is_asked_once(threads: Threads) -> None:
    (threads.task / "50/schedstat").write_text("")
    assert threads.busiest.read() == ()
    threads.run(50, 5)
    assert threads.busiest.read() == ()
