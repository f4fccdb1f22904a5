"""What serving engines, which train's rollouts run in, print of their workers: whose lines these are, and who died."""

import pytest

from tests.builders.texts import RAISED, marked, told, verdict

_ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
_SGLANG = "[2026-01-29 08:52:51{}] "
_HIT = "Scheduler hit an exception: "
_FIRST, _, _REST = RAISED.partition("\n")


def _message(mark: str, body: str = _REST) -> str:
    """A logger's message of several lines: its mark stands before the first one only."""
    return f"{mark}{_HIT}{_FIRST}\n{body}"


@pytest.mark.parametrize(
    ("mark", "rank"),
    [
        (_SGLANG.format(" TP5"), 5),
        (_SGLANG.format(" TP12 EP12"), 12),
        ("(VllmWorker rank=3 pid=4120) ERROR 04-01 10:00:00 [worker.py:9] ", 3),
        ("(Worker_TP1 pid=4120) ERROR 04-01 10:00:00 [worker.py:9] ", 1),
        ("(Worker_TP1_EP1 pid=4120) ERROR 04-01 10:00:00 [worker.py:9] ", 1),
    ],
)
def test_an_engine_tells_the_rank_where_one_parallelism_counts_alone(mark: str, rank: int) -> None:
    assert told(_message(mark)) == ("rank_raised", (rank,))
    assert told(marked(RAISED, mark)) == ("rank_raised", (rank,))
    assert told(_message(mark, _REST.replace("ValueError: shard 17 is empty\n", _ECC))) == ("gpu_fault", (rank,))


@pytest.mark.parametrize("mark", [" DP1 TP0", " PP1 TP0", ""])
def test_no_rank_is_told_where_several_parallelisms_count(mark: str) -> None:
    assert told(_message(_SGLANG.format(mark))) == ("rank_raised", ())
    assert told(_message("(Worker_DP1_TP0 pid=77) ")) == ("rank_raised", ())


def test_a_traceback_chained_to_a_marked_one_is_its_writer_s_and_another_s_is_not() -> None:
    lost = "RuntimeError: NCCL communicator was aborted on rank 5.\n"
    chained = f"\nDuring handling of the above exception, another exception occurred:\n\n{_FIRST}\n"
    both = _message(_SGLANG.format(" TP5")) + chained + _REST.replace("ValueError: shard 17 is empty\n", lost)
    assert told(both) == ("rank_raised", (5,))
    assert told(_message(_SGLANG.format(" TP5")) + RAISED.replace("ValueError", "KeyError")) == ("rank_raised", (5,))
    assert told(f"{_SGLANG.format(' TP5')}{_HIT}{_FIRST}\nstep 7\n{_REST}") == ("rank_raised", ())


_DEAD = (
    ("ERROR 07-04 17:35:16 [multiproc_executor.py:140] Worker proc VllmWorker-{} died unexpectedly, shutting down "
     "executor.\n"),
    ("ERROR 08-19 10:21:41 [ray_executor_v2.py:312] RayWorkerProc rank=[{}] died unexpectedly, shutting down "
     "executor.\n"),
)  # fmt: skip
_ENGINE = "(EngineCore pid=41221) "
_CANCELLED = marked(RAISED.replace("ValueError: shard 17 is empty", "RuntimeError: cancelled"), _ENGINE)
_STARVED = "INFO 08-19 10:21:11 [shm_broadcast.py:681] No available shared memory broadcast block found in 60 s.\n"


@pytest.mark.parametrize("dead", _DEAD)
def test_an_engine_tells_which_worker_died_and_what_it_raises_then_follows(dead: str) -> None:
    assert told(dead.format(1) + 3 * _STARVED) == ("rank_exited", (1,))
    assert told(_STARVED + marked(dead.format(2), _ENGINE) + _CANCELLED) == ("rank_exited", (2,))
    assert "died unexpectedly" in verdict(dead.format(1)).summary


@pytest.mark.parametrize("dead", _DEAD)
def test_one_of_several_engines_counts_its_own_workers(dead: str) -> None:
    assert told(marked(dead.format(1), "(EngineCore_DP0 pid=9) ")) == ("rank_exited", (1,))
    assert told(marked(dead.format(1), "(EngineCore_DP1 pid=9) ")) == ("rank_exited", ())


def test_an_engine_that_waits_alone_tells_of_nobody() -> None:
    assert told(4 * _STARVED) == ("undecided", ())
    assert told(_CANCELLED) == ("undecided", ())
