"""How children are started that talk to their parent over a socket: by the loop itself, or by the privileged side in
its stead (node.privileged_client)."""

import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol


class Child(Protocol):
    """The part of subprocess.Popen that the loop uses."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int:
        """Raise subprocess.TimeoutExpired."""
        ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Talking(Protocol):
    """A child and our end of the stream socket that is its standard input and output."""

    @property
    def child(self) -> Child: ...

    @property
    def channel(self) -> socket.socket: ...


# Raise OSError when it cannot be started.
Start = Callable[[], Talking]


class OwnChild:
    """A process of ours, with our rights."""

    def __init__(self, command: Sequence[str], *, leads_session: bool = True, quiet: bool = False) -> None:
        """One that `leads_session` is in a session of its own; another one is in our group, for who ends us to end
        too. Of a `quiet` one nobody hears what it says on standard error. Raise OSError."""
        self.channel, theirs = socket.socketpair()
        with theirs:
            try:
                self.child: Child = subprocess.Popen(
                    list(command),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL if quiet else None,
                    start_new_session=leads_session,
                )
            except OSError:
                self.channel.close()
                raise


def module_of_ours(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module of this very installation."""
    return (sys.executable, "-P", "-m", module, *arguments)


def start_own(command: Sequence[str], *, leads_session: bool = True, quiet: bool = False) -> Start:
    """Return what starts such a child, as OwnChild does."""
    return partial(OwnChild, command, leads_session=leads_session, quiet=quiet)
