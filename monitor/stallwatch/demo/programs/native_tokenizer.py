"""Text goes through a C library that is called without releasing the GIL, and one call does not come back."""

import ctypes

from torch import Tensor

from stallwatch.demo.training import Training, run

native = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call


def tokenize(training: Training, step: int) -> Tensor:
    """Call a C function that keeps the GIL: at once back, or after an hour in the step that strikes."""
    seconds = 3600 if training.strikes(step) else 0
    native.sleep(seconds)
    return training.batch()


def train(training: Training) -> None:
    """Learn from what comes of the tokenizer."""
    for step in training.steps():
        training.learn(tokenize(training, step))


if __name__ == "__main__":
    run(train)
