"""Losses and token counts travel in groups of their own; one rank sends the counts first."""

import torch.distributed as dist

from stallwatch.demo.training import BATCH, Training, run


def train(training: Training) -> None:
    """Reduce losses and counts in two groups; in the step that strikes in the other order."""
    loss_group = dist.new_group(group_desc="losses")
    count_group = dist.new_group(group_desc="token_counts")
    for step in training.steps():
        losses = training.learn(training.batch()).repeat(BATCH)
        counts = losses.new_ones(BATCH)
        if training.strikes(step):
            dist.all_reduce(counts, group=count_group)
            dist.all_reduce(losses, group=loss_group)
        else:
            dist.all_reduce(losses, group=loss_group)
            dist.all_reduce(counts, group=count_group)


if __name__ == "__main__":
    run(train)
