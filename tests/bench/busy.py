"""Processes that keep a machine busy: `busy.py PARENT`, each of which wants a whole core until its parent is gone."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_TURNS = 20_000  # between two looks at the parent: some milliseconds


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Have so many want a core each, at nice 0 where we may; all of them have ended when the block does. Each also
    ends by itself when this process is killed."""
    command = [sys.executable, "-S", __file__, str(os.getpid())]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        yield
    finally:
        for one in running:
            one.kill()
        for one in running:
            one.wait()


def _keep_busy(parent: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    while os.getppid() == parent:
        for _ in range(_TURNS):
            pass


if __name__ == "__main__":
    _keep_busy(int(sys.argv[1]))
