"""Rank 0 saves the model every ten steps while the others wait; one day the storage takes 64 KiB and then nothing."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from stallwatch.demo.training import Training, run

SAVE_EVERY_STEPS = 10


def stalled_storage(path: Path) -> Path:
    """A file that accepts what a pipe holds: it has a reader, and the reader does not read."""
    os.mkfifo(path)
    os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return path


def save(training: Training, step: int) -> None:
    """Write the model as a checkpoint; in the step that strikes onto a storage that takes no more."""
    path = training.folder / f"step-{step}.pt"
    if step == training.fault_step:
        stalled_storage(path)
        training.mark()
    with open(path, "wb") as file:
        torch.save(training.model.module.state_dict(), file)


def train(training: Training) -> None:
    """Learn; every ten steps rank 0 saves, and the others wait in a barrier."""
    for step in training.steps():
        training.learn(training.batch())
        if step % SAVE_EVERY_STEPS == 0:
            with training.phase("checkpoint"):
                if training.rank == 0:
                    save(training, step)
                dist.barrier()


if __name__ == "__main__":
    run(train)
