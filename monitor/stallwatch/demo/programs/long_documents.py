"""Documents are tokenized on the fly; from some step on one rank gets the long ones, and everybody waits for it."""

import time

from torch import Tensor

from stallwatch.demo.training import Training, run

LONG_DOCUMENT_SECONDS = 0.1
SENTENCE = "the quick brown fox jumps over the lazy dog"


def tokenize(seconds: float) -> int:
    """Work of this length on the CPU; return how many words it came to."""
    words = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        words += len(SENTENCE.split())
    return words


def documents(training: Training, step: int) -> Tensor:
    """A batch; from the step that strikes on the drawn rank works a tenth of a second for each."""
    if training.strikes(step) or (training.is_drawn and step > training.fault_step):
        tokenize(LONG_DOCUMENT_SECONDS)
    return training.batch()


def train(training: Training) -> None:
    """Learn from documents that are tokenized on the way."""
    for step in training.steps():
        training.learn(documents(training, step))


if __name__ == "__main__":
    run(train)
