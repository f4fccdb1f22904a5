"""What every sensor is, and what its child process is told at the start."""

from typing import Protocol, TypeVar

import msgspec

Value = TypeVar("Value", covariant=True)
LATE_SECONDS = 30.0  # a source that has not answered for so long is said: it may hang
KEPT_SECONDS = 600.0  # what happened is told for so long: an incident that begins later has other causes


class Sensor(Protocol[Value]):
    """Reads one kind of fact about the node. It runs in a child process of its own, so `read` may block: the loop
    goes on without it. It may raise anything: the message becomes the reason why the fact is unavailable."""

    def read(self) -> Value:
        """Return a frozen value that msgpack can carry. Raise Absent when this node does not have the thing at all."""
        ...


class Options(msgspec.Struct, frozen=True):
    """Everything the children need of the configuration; they read no file and no environment of ours."""

    directories: tuple[str, ...] = ()
    deadline_seconds: float = 0.5  # of a look at the node, of which an answer is a part
    keep_ended_seconds: float = 120.0
    discover_seconds: float = 5.0
    node: str = ""
    release_file: str = ""  # of node.gpu_release
    known: int = -1  # the descriptor of node.known_ranks, on the privileged side


# What a sensor's child says to the panel, each in a message as of encoding.pack.

NEWS = 0  # answers no request: something happened, ask soon


class SensorAnswer(msgspec.Struct, frozen=True):
    """What a child says to request `request`: a value, or why there is none."""

    request: int
    duration_seconds: float
    value: bytes = b""  # msgpack of the sensor's own type; empty: there is none
    error: str = ""
    absent: bool = False  # the node does not have it; the child ends after saying so
    again_seconds: float | None = None  # of what is absent: when it may be there; None: nobody knows
