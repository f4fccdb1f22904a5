"""How the loop starts children that read other users' processes: by itself, or by the launcher that holds the
capabilities in its stead."""

import subprocess
from collections.abc import Sequence
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


class Start(Protocol):
    """`stdin`, `stdout` and `more` are descriptors, which stay ours too; the numbers that those of `more` have in the
    child are its last arguments. The child leads a session of its own. Raise OSError when it cannot be started."""

    def __call__(self, command: Sequence[str], stdin: int, stdout: int | None, more: Sequence[int] = ()) -> Child: ...


def start_here(command: Sequence[str], stdin: int, stdout: int | None, more: Sequence[int] = ()) -> Child:
    """As a child of this process, with its rights."""
    return subprocess.Popen(
        [*command, *map(str, more)], stdin=stdin, stdout=stdout, pass_fds=tuple(more), start_new_session=True
    )
