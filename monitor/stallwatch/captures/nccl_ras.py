"""Asks NCCL's RAS service who has launched what: `python -m stallwatch.captures.nccl_ras`, asks and answers as JSON on
standard input and output.

A process of its own, for it is the only one beside a capture that uses the network: it connects to loopback addresses,
then gives up its capabilities and every way to another connection, and only then listens to what a job's process says.
"""

import ctypes
import os
import socket
import sys
import time
from collections.abc import Iterator

import msgspec

from stallwatch.encoding import json_of
from stallwatch.formats.addresses import is_loopback
from stallwatch.node import capabilities
from stallwatch.node.framing import as_child
from stallwatch.node.no_network import give_up_network

_CONNECT_SECONDS = 1.0
_REPORT_LIMIT_BYTES = 16 << 20
_LINE_LIMIT_BYTES = 4096
_PROTOCOL = 2  # ncclras of NCCL 2.24 and later
_CLONE_NEWNET = 0x40000000


class RasAsk(msgspec.Struct, frozen=True):
    """A RAS socket that is to be asked."""

    host: str  # a loopback address, or "localhost"
    port: int
    pid: int | None = None  # a process in whose network namespace it listens; None: ours


class RasAnswer(msgspec.Struct, frozen=True):
    """What a RAS socket answered, or why it did not."""

    port: int
    report: bytes = b""  # as NCCL wrote it: JSON, else text
    problem: str = ""


class RasRefused(Exception):
    """What the service, or the kernel, said instead of a report."""


def converse(connection: socket.socket, deadline: float) -> bytes:
    """Speak the line protocol over a connection and return the report. Raise RasRefused, OSError or TimeoutError."""
    lines = _Lines(connection, deadline)
    answer = lines.ask(f"CLIENT PROTOCOL {_PROTOCOL}")
    if not answer.startswith("SERVER PROTOCOL"):
        raise RasRefused(f'it is not NCCL\'s RAS service: it said "{answer[:80]}"')
    # What its own collection from the other nodes may take, within our time.
    seconds = max(1, int(deadline - time.monotonic()) - 1)
    if (answer := lines.ask(f"TIMEOUT {seconds}")) != "OK":
        raise RasRefused(f'it said "{answer[:80]}" to a timeout')
    lines.ask("SET FORMAT json")  # before 2.28.7 it is an error, and the report is text
    lines.say("VERBOSE STATUS")
    report = lines.rest()
    if report.startswith(b"ERROR"):
        raise RasRefused(f'it said "{report[:200].decode("utf-8", "replace").strip()}"')
    if not report.strip():
        raise RasRefused("it closed the connection without a report")
    return report


class _Lines:
    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._buffer = b""

    def say(self, line: str) -> None:
        self._wait()
        self._connection.sendall(f"{line}\n".encode())

    def ask(self, line: str) -> str:
        self.say(line)
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LINE_LIMIT_BYTES:
                raise RasRefused("it is not NCCL's RAS service: its lines do not end")
            if not (data := self._receive()):
                raise RasRefused(f"it closed the connection after {line}")
            self._buffer += data
        answer, _, self._buffer = self._buffer.partition(b"\n")
        return answer.decode("utf-8", "replace").strip()

    def rest(self) -> bytes:
        parts, size = [self._buffer], len(self._buffer)
        while data := self._receive():
            parts.append(data)
            size += len(data)
            if size > _REPORT_LIMIT_BYTES:
                raise RasRefused(f"its report is longer than {_REPORT_LIMIT_BYTES} bytes")
        return b"".join(parts)

    def _receive(self) -> bytes:
        self._wait()
        return self._connection.recv(1 << 16)

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)


def loopback_addresses(host: str) -> tuple[str, ...]:
    """Return the addresses to try, never one that leads off this node; none when the host is not local."""
    if host in ("", "localhost"):
        return ("127.0.0.1", "::1")
    return (host,) if is_loopback(host) else ()


def connect(ask: RasAsk) -> socket.socket:
    """Raise RasRefused with a sentence that says what to do, or OSError."""
    refusal: OSError | None = None
    for address in loopback_addresses(ask.host):
        try:
            return socket.create_connection((address, ask.port), _CONNECT_SECONDS)
        except OSError as error:
            refusal = error
    if refusal is None:
        raise RasRefused(f"NCCL_RAS_ADDR={ask.host}:{ask.port} is not on this node's loopback; it is not asked")
    raise RasRefused(
        f"nothing answers on port {ask.port} ({refusal.strerror or refusal}): NCCL_RAS_ENABLE=0, "
        "or no communicator exists yet"
    )


def _connections(asks: tuple[RasAsk, ...]) -> Iterator[tuple[RasAsk, socket.socket | str]]:
    """Enter the namespace of each, ours first, and connect there."""
    for ask in sorted(asks, key=lambda ask: ask.pid is not None):
        try:
            if ask.pid is not None:
                _enter_network_of(ask.pid)
            yield ask, connect(ask)
        except RasRefused as refused:
            yield ask, str(refused)
        except OSError as error:
            yield ask, error.strerror or str(error)


def _enter_network_of(pid: int) -> None:
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise RasRefused(
                f"the rank lives in another network namespace ({os.strerror(number)}): "
                "run the daemon in its container, or the container with --network host"
            )
    finally:
        os.close(descriptor)


def answer_all(asks: tuple[RasAsk, ...], seconds: float) -> list[RasAnswer]:
    """Connect to every one, lock the door, and listen to one after the other, within `seconds` for all."""
    deadline = time.monotonic() + seconds
    connections = list(_connections(asks))
    capabilities.drop()
    give_up_network(connecting=True)
    answers = []
    for ask, connection in connections:
        if isinstance(connection, str):
            answers.append(RasAnswer(ask.port, problem=connection))
            continue
        with connection:
            try:
                answers.append(RasAnswer(ask.port, converse(connection, deadline)))
            except RasRefused as refused:
                answers.append(RasAnswer(ask.port, problem=str(refused)))
            except TimeoutError:
                answers.append(RasAnswer(ask.port, problem=f"no answer within {seconds:.0f} s"))
            except OSError as error:
                answers.append(RasAnswer(ask.port, problem=error.strerror or str(error)))
    return answers


def main(seconds: float) -> None:
    """Ask the sockets that standard input names, and write their answers."""
    data = sys.stdin.buffer.read()
    if data:  # none: there is nobody to ask
        asks = msgspec.json.decode(data, type=tuple[RasAsk, ...])
        sys.stdout.buffer.write(json_of(answer_all(asks, seconds)))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    as_child(lambda: main(float(sys.argv[1])))
