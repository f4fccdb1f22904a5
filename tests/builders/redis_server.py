"""A redis-server of a test's own, which keeps nothing over its end."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

SERVER: Final = shutil.which("redis-server")
_SECONDS: Final = 60.0

Address = int | Path  # a port of 127.0.0.1, or a socket's file


def start_redis(
    folder: Path,
    *arguments: str,
    bind: str = "127.0.0.1",
    program: str = "redis-server",
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start one, whose files are in `folder`, what it says in `log` among them, and do not wait for it."""
    command = [program, *arguments, "--bind", bind, "--dir", str(folder)]
    if "--sentinel" not in arguments:
        command += ["--save", ""]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


@contextlib.contextmanager
def redis_server(
    folder: Path,
    *arguments: str,
    listens: Address,
    program: str = "redis-server",
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """One that answers at `listens`, by these arguments, until the end of the block. Raise AssertionError, with what it
    said, where it does not come."""
    process = start_redis(folder, *arguments, program=program, environment=environment)
    try:
        end = time.monotonic() + _SECONDS
        while not answers(listens):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.02)
        assert process.poll() is None, (folder / "log").read_text()  # else another program has that port
        yield
    finally:
        process.kill()
        process.wait()


def answers(listens: Address) -> bool:
    """Whether somebody listens there."""
    with contextlib.suppress(OSError):
        if isinstance(listens, int):
            socket.create_connection(("127.0.0.1", listens), 1).close()
        else:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(listens))
        return True
    return False
