"""Who waits for its GPU, and who computes, by where a thread runs and what its line says."""

import pytest

from stallwatch.diagnosis.activity import read_activity
from stallwatch.model.evidence import ThreadState
from tests.builders.job import Call, world
from tests.builders.job import recorder as recorded
from tests.builders.rank_evidence import PID, STEP, process, rank, source, stack

GPU_THREADS = (ThreadState(PID, "python", "R"), ThreadState(PID + 1, "cuda-EvtHandlr", "S"))


def test_a_thread_that_spins_without_the_gil_waits_for_its_gpu() -> None:
    spinning = rank(stack(*STEP), "R", active=True, processes=(process("R", threads=GPU_THREADS),))
    assert read_activity(spinning).place.gpu_sync
    computing = rank(stack(*STEP), "R", active=True, owns_gil=True, processes=(process("R", threads=GPU_THREADS),))
    assert read_activity(computing).place.where == "busy_loop"
    without_gpu = rank(stack(*STEP), "R", active=True)
    assert read_activity(without_gpu).place.where == "busy_loop"


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("time.sleep(0.02)", "busy_loop"),
        ("subprocess.run(command)", "busy_loop"),
        ("print(step, float(loss))", "gpu_sync"),  # as rank 0 logs: it reads from its device first
        ("file.write(pickle.dumps(values))", "gpu_sync"),
        ("loss.item()", "gpu_sync"),
        ("work.wait()", "gpu_sync"),
        ("loss = model(batch)", "gpu_sync"),
    ],
)
def test_who_runs_at_a_line_that_calls_the_host_waits_for_no_gpu(line: str, where: str) -> None:
    """A rank that writes its last checkpoint in small pieces, seen as it woke: it waited for those that had left."""
    look = process("R", threads=GPU_THREADS)
    running = rank(stack(*STEP), "R", active=True, processes=(look,), sources=source(20, line))
    assert read_activity(running).place.where == where


def test_the_empty_recorder_of_a_build_for_gpus_makes_no_gpu_rank() -> None:
    empty = recorded(0, ())
    computing = rank(stack(*STEP), "R", active=True, recorders=(empty,))
    assert read_activity(computing).place.where == "busy_loop"
    used = rank(stack(*STEP), "R", active=True, recorders=(recorded(2, (Call(world(3)),)),))
    assert read_activity(used).place.gpu_sync


def test_synchronize_is_a_gpu_wait() -> None:
    activity = read_activity(rank(stack("synchronize@TORCH/cuda/__init__.py:1", *STEP), "R", active=True))
    assert (activity.place.where, activity.place.gpu_sync, activity.call.in_collective) == ("gpu_sync", True, False)
