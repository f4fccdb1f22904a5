"""Data is split unevenly: one rank has fewer batches, leaves its epoch early and waits for the others at its end."""

import torch.distributed as dist

from stallwatch.demo.training import Training, run

EPOCHS = 3


def epoch(training: Training) -> None:
    """One pass over the data; it ends early on the rank that has fewer batches."""
    for step in training.steps():
        if training.strikes(step):
            break  # no batches left on this rank
        training.learn(training.batch())


def train(training: Training) -> None:
    """Epochs, each with a barrier at its end."""
    for _ in range(EPOCHS):
        epoch(training)
        dist.barrier()


if __name__ == "__main__":
    run(train)
