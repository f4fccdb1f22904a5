"""Every rank asks a server for permission before it joins the job; one is never answered."""

import socket

from stallwatch.demo.training import Training, run


def ask_server(training: Training) -> None:
    """Before the group is made; the drawn rank connects to a server that says nothing."""
    training.mark()  # the others wait from when they get here
    if training.is_drawn:
        server = socket.create_server(("127.0.0.1", 0))  # accepts, and says nothing
        client = socket.create_connection(server.getsockname())
        client.recv(1)


def train(training: Training) -> None:
    """Learn: all that goes wrong went wrong before."""
    for _ in training.steps():
        training.learn(training.batch())


if __name__ == "__main__":
    run(train, prepare=ask_server)
