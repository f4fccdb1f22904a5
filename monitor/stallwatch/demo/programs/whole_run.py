"""Nothing goes wrong: a slow first step, a long evaluation, a checkpoint by rank 0 for which the others wait."""

import os
import time

import torch.distributed as dist

from stallwatch.demo.training import Training, run

FIRST_STEP_SECONDS = 8.0
EVALUATION_SECONDS = 12.0
CHECKPOINT_SECONDS = 10.0


def work(seconds: float) -> None:
    """Use the CPU lightly for a time: four ranks may share one laptop."""
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        while time.monotonic() < now + 0.01:
            pass
        time.sleep(0.05)


def evaluate(training: Training) -> None:
    """Work for a time, longer on the drawn rank, for which the others wait in a barrier."""
    work(EVALUATION_SECONDS if training.is_drawn else EVALUATION_SECONDS / 4)
    dist.barrier()


def save(training: Training) -> None:
    """Write a file slowly, as to a busy network file system."""
    until = time.monotonic() + CHECKPOINT_SECONDS
    with open(training.folder / "model.pt", "wb") as file:
        while time.monotonic() < until:
            file.write(bytes(1 << 20))
            os.fsync(file.fileno())
            file.seek(0)
            time.sleep(0.1)


def train(training: Training) -> None:
    """A slow first step, then learning with one evaluation and one checkpoint, then an end in order."""
    for step in training.steps():
        if step == 0:
            work(FIRST_STEP_SECONDS)  # kernels are compiled
        training.learn(training.batch())
        if step == training.fault_step:
            with training.phase("evaluation"):
                evaluate(training)
        if step == 2 * training.fault_step:
            with training.phase("checkpoint"):
                if training.rank == 0:
                    save(training)
                dist.barrier()
        if step == 3 * training.fault_step:
            break


if __name__ == "__main__":
    run(train)
