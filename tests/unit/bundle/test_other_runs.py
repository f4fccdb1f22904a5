"""Dumps under one prefix that torch wrote in several runs: a rank that could not write this time has its old file."""

import pickle
from pathlib import Path

import pytest

from stallwatch.bundle.reader import load

SECOND = 1_000_000_000
STEP = SECOND // 20


def dump(
    folder: Path, rank: int, *, began_ns: int, calls: range, done: int, late_ns: int = 0, waits_ns: int = STEP // 2
) -> None:
    """Of one group of four: call number n is made at n steps, and ends `waits_ns` after."""
    entries = [
        {
            "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
            "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce", "is_p2p": False,
            "time_created_ns": began_ns + number * STEP + late_ns, "retired": number <= done,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": began_ns + number * STEP + late_ns + waits_ns if number <= done else None,
            "input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            "state": "completed" if number <= done else "scheduled", "timeout_ms": 600_000, "frames": [],
        }
        for number in calls
    ]  # fmt: skip
    status = {"last_enqueued_collective": calls[-1], "last_started_collective": -1, "last_completed_collective": done}
    value = {
        "version": "2.10", "entries": entries, "pg_status": {"0": status},
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
    }  # fmt: skip
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(value, protocol=2))


def used(folder: Path) -> list[int]:
    return [rank.rank for rank in load([folder]).ranks if rank.recorders]


@pytest.mark.parametrize("hours", [-40, -0.05, 3])
@pytest.mark.parametrize("last", [20, 400])
def test_the_file_of_another_run_is_said_and_not_used(tmp_path: Path, hours: float, last: int) -> None:
    began = 1_795_000_000 * SECOND
    for rank in (0, 1, 3):
        dump(tmp_path, rank, began_ns=began, calls=range(1, 100), done=98)
    dump(tmp_path, 2, began_ns=began + int(hours * 3600) * SECOND, calls=range(1, last), done=last - 2)
    assert used(tmp_path) == [0, 1, 3]
    (said,) = (caveat for caveat in load([tmp_path]).caveats if "another run" in caveat)
    assert said.startswith("rank 2: ")


@pytest.mark.parametrize("late_seconds", [0, 20, 500])
def test_a_rank_that_comes_late_is_of_this_run(tmp_path: Path, late_seconds: int) -> None:
    """Its first calls were made long after the others', which were enqueued at once and ended when it came."""
    began, late = 1_795_000_000 * SECOND, late_seconds * SECOND
    for rank in (0, 1, 3):
        dump(tmp_path, rank, began_ns=began, calls=range(1, 50), done=48, waits_ns=late + STEP)
    dump(tmp_path, 2, began_ns=began, calls=range(1, 48), done=47, late_ns=late)
    assert used(tmp_path) == [0, 1, 2, 3]


def test_a_rank_that_stopped_long_before_is_of_this_run(tmp_path: Path) -> None:
    """The others made many more calls since, in their own groups' numbers too: what it shares was made together."""
    began = 1_795_000_000 * SECOND
    for rank in (0, 1, 3):
        dump(tmp_path, rank, began_ns=began, calls=range(5, 3000), done=2998)
    dump(tmp_path, 2, began_ns=began, calls=range(1, 30), done=29)
    assert used(tmp_path) == [0, 1, 2, 3]


def test_of_two_halves_the_later_run_is_read(tmp_path: Path) -> None:
    began = 1_795_000_000 * SECOND
    for rank in range(4):
        later = 600 * SECOND if rank >= 2 else 0
        dump(tmp_path, rank, began_ns=began + later, calls=range(1, 100), done=98)
    assert used(tmp_path) == [2, 3]
