"""Ranks average their loss, then vote on stopping early; a rank with a bad loss leaves out the average."""

import torch
import torch.distributed as dist
from torch import Tensor

from stallwatch.demo.training import BATCH, Training, run


def average(training: Training, loss: Tensor, step: int) -> None:
    """Add the losses up unless one of them is NaN: who has one leaves the all_reduce out."""
    losses = loss.repeat(BATCH)
    if training.strikes(step):
        losses[0] = torch.nan
    if losses.isfinite().all():
        dist.all_reduce(losses)


def vote(training: Training, loss: Tensor) -> None:
    """Gather what every rank has, to decide whether to stop."""
    votes = [torch.empty(BATCH, device=training.device) for _ in range(training.world_size)]
    dist.all_gather(votes, loss.repeat(BATCH))


def train(training: Training) -> None:
    """Learn, average and vote; both are of the same size, so that they meet each other."""
    for step in training.steps():
        loss = training.learn(training.batch())
        average(training, loss, step)
        vote(training, loss)


if __name__ == "__main__":
    run(train)
