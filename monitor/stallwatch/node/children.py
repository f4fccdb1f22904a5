"""How children are started that talk to their parent over a socket: by the loop itself, or by the privileged side in
its stead (node.privileged_client)."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, Protocol


class Child(Protocol):
    """The part of subprocess.Popen that the loop uses."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raise subprocess.TimeoutExpired after so many seconds."""
        ...

    def terminate(self) -> None:
        """Send it SIGTERM."""

    def kill(self) -> None:
        """Send it SIGKILL."""


class Talking(Protocol):
    """A child and our end of the stream socket that is its standard input and output."""

    @property
    def child(self) -> Child:
        """Its process, to be polled and ended."""

    @property
    def channel(self) -> socket.socket:
        """Our end of the socket; blocking, unless its owner made it otherwise."""


# Raise OSError when it cannot be started.
Start = Callable[[], Talking]


class PopenChild(subprocess.Popen[bytes]):
    """One that leads a session is killed with all that it started in it; another one is in our own group, for who ends
    us to end too."""

    def __init__(self, command: Sequence[str], *, leads_session: bool, **files: Any) -> None:
        """`files` as Popen has them. Raise OSError."""
        self._leads_session = leads_session
        super().__init__(list(command), start_new_session=leads_session, **files)

    def kill(self) -> None:
        """From any thread: who waits for it sees its end."""
        if self.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._leads_session:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                super().kill()


class OwnChild:
    """A process of ours, with our rights."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        leads_session: bool = True,
        quiet: bool = False,
        lends: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`leads_session` as in PopenChild. Of a `quiet` one nobody hears what it says on standard error. `lends`:
        descriptors that it keeps, by the same numbers. `variables`: of its environment, beside ours. Raise OSError."""
        self.channel, theirs = socket.socketpair()
        with theirs:
            try:
                self.child: Child = PopenChild(
                    command,
                    leads_session=leads_session,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL if quiet else None,
                    pass_fds=tuple(lends),
                    env={**os.environ, **variables} if variables else None,
                )
            except OSError:
                self.channel.close()
                raise


def start_logged(command: Sequence[str], log: BinaryIO, environment: Mapping[str, str]) -> PopenChild:
    """Start a whole program, ranks of a job or a daemon, in a session of its own, as under a scheduler: no terminal
    belongs to it, and Ctrl-C is for who has started it. What it says is in `log`. Raise OSError."""
    return PopenChild(
        command,
        leads_session=True,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=dict(environment),
    )


def module_of_ours(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module of this very installation."""
    return (sys.executable, "-P", "-m", module, *arguments)


def start_own(
    command: Sequence[str],
    *,
    leads_session: bool = True,
    quiet: bool = False,
    lends: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> Start:
    """Return what starts such a child, as OwnChild does."""
    return partial(OwnChild, command, leads_session=leads_session, quiet=quiet, lends=lends, variables=variables)
