"""One rank is stopped from outside, as a debugger, a batch system or Ctrl-Z does."""

import os
import signal

from stallwatch.demo.training import Training, run


def train(training: Training) -> None:
    """Learn; in the step that strikes this rank sends itself SIGSTOP."""
    for step in training.steps():
        if training.strikes(step):
            os.kill(os.getpid(), signal.SIGSTOP)
        training.learn(training.batch())


if __name__ == "__main__":
    run(train)
