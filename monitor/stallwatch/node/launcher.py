"""The process that holds the capabilities: `python -P -m stallwatch.node.launcher FD`, the number of its end of a
socket. It has no network and does one thing: it starts those children that read other users' processes.

The daemon, which talks to the network, holds none, and cannot take any from here: it names one of few programs and what
that may read, never a command. Standard library only: it lives as long as the daemon, beside it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from stallwatch.node.no_network import give_up_network

# What may be started, and its first argument where that decides what it reads.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "stallwatch.sensors.child": ("ranks", "host"),
    "stallwatch.captures.child": (),
    "stallwatch.captures.sample_child": (),
    "stallwatch.captures.release": (),
}
MESSAGE_LIMIT_BYTES = 1 << 16
MOST_DESCRIPTORS = 8


class NotAllowed(ValueError):
    pass


def command_of(module: str, arguments: Sequence[str]) -> list[str]:
    """Raise NotAllowed for everything that is not in the table."""
    first = PROGRAMS.get(module)
    if first is None or (first and (not arguments or arguments[0] not in first)):
        raise NotAllowed(f"{module} {arguments[:1]} is not started with capabilities")
    return [sys.executable, "-P", "-m", module, *arguments]


class Launching:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def serve(self, wakeup: int) -> None:
        """Start what is asked for and tell of ends, until the daemon has gone. `wakeup` is readable after a SIGCHLD."""
        poll = select.poll()
        for descriptor in (self._connection.fileno(), wakeup):
            poll.register(descriptor, select.POLLIN)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                ready = {descriptor for descriptor, _ in poll.poll()}
                if wakeup in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wakeup, 4096)
                    self._tell_ends()
                if self._connection.fileno() in ready and not self._take():
                    break
        for child in self._children.values():  # a capture lets its ranks go on and ends
            child.terminate()

    def _take(self) -> bool:
        data, descriptors, flags, _ = socket.recv_fds(
            self._connection, MESSAGE_LIMIT_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        try:
            if not data:
                return False
            if not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                self._start(json.loads(data), descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _start(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        number = request["number"]
        try:
            stdin, *others = descriptors
            stdout = others.pop(0) if request["has_stdout"] else None
            command = command_of(request["module"], [*request["arguments"], *map(str, others)])
            child = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, pass_fds=tuple(others), start_new_session=True
            )
        except OSError as error:
            self._tell({"number": number, "errno": error.errno, "error": error.strerror})
            return
        except NotAllowed as error:
            self._tell({"number": number, "errno": 1, "error": str(error)})
            return
        self._children[child.pid] = child
        # By this the daemon can signal it, whatever its pid is used for by then: it is not reaped before it is told.
        pidfd = os.pidfd_open(child.pid)
        try:
            self._tell({"number": number, "pid": child.pid}, pidfd)
        finally:
            os.close(pidfd)

    def _tell_ends(self) -> None:
        for pid, child in list(self._children.items()):
            if (code := child.poll()) is not None:
                del self._children[pid]
                self._tell({"ended": pid, "code": code})

    def _tell(self, message: dict[str, Any], *descriptors: int) -> None:
        socket.send_fds(self._connection, [json.dumps(message).encode()], descriptors)


def main(descriptor: int) -> None:
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    give_up_network()
    wakeup, write = os.pipe()
    for end in (wakeup, write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    # Whoever ends the service tells all its processes; the daemon still needs us to let ranks go on, and it ends us by
    # closing the socket. Handled, not ignored: what is ignored stays so in children.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    Launching(connection).serve(wakeup)


if __name__ == "__main__":
    main(int(sys.argv[1]))
