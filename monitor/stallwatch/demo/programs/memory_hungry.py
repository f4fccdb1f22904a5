"""One rank is killed from outside, as the kernel does when memory runs out."""

import os
import signal

from stallwatch.demo.training import Training, run


def train(training: Training) -> None:
    """Learn; in the step that strikes this rank kills itself by SIGKILL."""
    for step in training.steps():
        if training.strikes(step):
            os.kill(os.getpid(), signal.SIGKILL)
        training.learn(training.batch())


if __name__ == "__main__":
    run(train)
