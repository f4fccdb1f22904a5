"""Ranks add up their losses; the rank that writes the report gathers them instead."""

import torch
import torch.distributed as dist
from torch import Tensor

from stallwatch.demo.training import BATCH, Training, run


def report(training: Training, losses: Tensor, writes_report: bool) -> None:
    """Put the losses of all ranks together: by gathering where this rank writes, else by adding up."""
    if writes_report:
        everyone = [torch.empty_like(losses) for _ in range(training.world_size)]
        dist.all_gather(everyone, losses)
    else:
        dist.all_reduce(losses)


def train(training: Training) -> None:
    """Learn and report; in the step that strikes this rank writes."""
    for step in training.steps():
        loss = training.learn(training.batch())
        report(training, loss.repeat(BATCH), writes_report=training.strikes(step))


if __name__ == "__main__":
    run(train)
