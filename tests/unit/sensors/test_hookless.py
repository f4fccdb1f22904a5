from pathlib import Path

import pytest

from stallwatch.sensors.hookless import HooklessSearch
from tests.unit.sensors.fake_proc import FakeProc

RANK_0 = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1"
RANK_1 = "RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1"
TORCH = "7f00-7f01 r-xp 00000000 08:01 5 /site-packages/torch/lib/libtorch_cpu.so\n"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def found(search: HooklessSearch, searches: int = 6, known: tuple[int, ...] = ()) -> list[tuple[int, int]]:
    for _ in range(searches - 1):
        search.search(known)
    return [(rank.pid, rank.names.rank) for rank in search.search(known)]


def test_processes_with_rank_variables_and_torch_are_ranks(proc: FakeProc) -> None:
    proc.add(100)
    proc.add(101, parent=100, environment=RANK_0, maps=TORCH)
    proc.add(102, parent=100, environment=RANK_1, maps=TORCH)
    assert sorted(found(HooklessSearch(str(proc)))) == [(101, 0), (102, 1)]


def test_worker_that_inherited_the_variables_is_no_rank(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH)
    proc.add(150, parent=101, environment=RANK_0, maps=TORCH)
    proc.add(151, parent=150, environment=RANK_0, maps=TORCH)
    assert found(HooklessSearch(str(proc))) == [(101, 0)]


def test_process_without_torch_is_no_rank(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps="7f00-7f01 r-xp 0 08:01 5 /usr/lib/libc.so.6\n")
    assert found(HooklessSearch(str(proc))) == []


def test_rank_that_is_starting_has_the_time_to_attach_its_hook(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH)
    search = HooklessSearch(str(proc))
    assert found(search, searches=2) == []
    assert found(search, searches=1) == [(101, 0)]


def test_rank_with_a_hook_is_not_found_again(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0, maps=TORCH)
    assert found(HooklessSearch(str(proc)), known=(101,)) == []


def test_job_that_turned_stallwatch_off_is_left_alone(proc: FakeProc) -> None:
    proc.add(101, environment=RANK_0 + " STALLWATCH_DISABLE=1", maps=TORCH)
    assert found(HooklessSearch(str(proc))) == []


def test_process_read_before_its_exec_is_read_again(proc: FakeProc) -> None:
    proc.add(101, environment="HOME=/root", maps=TORCH)
    search = HooklessSearch(str(proc))
    search.search(())
    proc.add(101, environment=RANK_0, maps=TORCH)
    assert found(search) == [(101, 0)]


def test_pid_that_was_used_again_is_another_process(proc: FakeProc) -> None:
    proc.add(101, environment="HOME=/root", start=1)
    search = HooklessSearch(str(proc))
    assert found(search, searches=20) == []
    proc.add(101, environment=RANK_0, maps=TORCH, start=2)
    assert found(search, searches=20) == [(101, 0)]
