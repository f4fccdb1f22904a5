"""Shards come from an object store; one rank is told to retry later, and believes it."""

import time

from torch import Tensor

from stallwatch.demo.training import Training, run


def fetch(training: Training, step: int) -> Tensor:
    """A batch, or an hour of sleep before it where the store said Retry-After."""
    retry_after_seconds = 3600 if training.strikes(step) else 0
    if retry_after_seconds:
        time.sleep(retry_after_seconds)
    return training.batch()


def train(training: Training) -> None:
    """Learn from fetched shards."""
    for step in training.steps():
        training.learn(fetch(training, step))


if __name__ == "__main__":
    run(train)
