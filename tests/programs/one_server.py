"""In the step of the fault a rank asks a server that other jobs ask too, and that does not answer (ONE_SERVER,
"host:port")."""

import os
import socket

from stallwatch.demo.training import Training, run


def ask() -> bytes:
    """Wait for a word of the server."""
    host, _, port = os.environ["ONE_SERVER"].rpartition(":")
    with socket.create_connection((host, int(port))) as server:
        return server.recv(1)


def train(training: Training) -> None:
    """Learn, and ask once."""
    for step in training.steps():
        if training.strikes(step):
            ask()
        training.learn(training.batch())


if __name__ == "__main__":
    run(train)
