"""Small training programs with the hook in them, spoken to through their pipes."""

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from stallwatch.hook import layout
from stallwatch.model.snapshot import Heartbeat
from stallwatch.node.heartbeat_file import LayoutError
from tests.builders.records import decoded

T = TypeVar("T")
DEADLINE_SECONDS = 60.0  # for a busy machine; nothing is measured with it
LAUNCHER = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
_SET_BY_LAUNCHERS = ("STALLWATCH_", "TORCH", "NCCL_", "SLURM_", "OMPI_", "PMI", "KUBERNETES_", "MASTER_")


def eventually(look: Callable[[], T | None]) -> T:
    """Return the first value of `look` that is not None."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (value := look()) is None:
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
    return value


def others() -> list[str]:
    """Interpreters from 3.9 on: on the PATH, or side by side in pyenv's folder."""
    found: dict[int, str] = {}
    for minor in range(9, 20):
        beside = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python"))
        path = shutil.which(f"python3.{minor}") or (str(beside[-1]) if beside else None)
        if path and minor != sys.version_info.minor:
            found[minor] = str(beside[-1]) if beside else path
    return list(found.values())


class Program:
    """A running program: `ask` gives it a line and returns the line that it answers."""

    def __init__(self, process: "subprocess.Popen[bytes]", directory: Path) -> None:
        self.process = process
        self.directory = directory
        self._unread = b""

    def line(self) -> str:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([descriptor], [], [], DEADLINE_SECONDS)
            assert ready, "the program says nothing"
            more = os.read(descriptor, 1 << 16)
            assert more, "the program has ended"
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()

    def ask(self, line: str = "") -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        return self.line()

    def record_path(self) -> Path:
        """The record of this process, as soon as it is there."""

        def look() -> Path | None:
            return next((path for path in self.directory.glob(f"rank-*-{self.process.pid}-*.beat")), None)

        return eventually(look)

    def facts_path(self) -> Path:
        ends = layout.facts_ends(*self._key())
        return eventually(lambda: next((p for p in self.directory.iterdir() if layout.is_between(p.name, ends)), None))

    def request_path(self) -> Path:
        return Path(layout.request_path(str(self.directory), *self._key()))

    def answer_path(self, request_id: int, recorder: str) -> Path:
        ends = layout.answer_ends(*self._key(), request_id, recorder)
        (path,) = (path for path in self.directory.iterdir() if layout.is_between(path.name, ends))
        return path

    def _key(self) -> tuple[int, str]:
        key = layout.parse_record_name(self.record_path().name)
        assert key is not None
        return key

    def end(self, line: str = "") -> tuple[int, str]:
        """Let it end; return its exit status and what it wrote to stderr."""
        _, errors = self.process.communicate(line.encode() + b"\n", timeout=DEADLINE_SECONDS)
        return self.process.returncode, errors.decode()

    def record(self, until: Callable[[Heartbeat], bool] = lambda _: True) -> Heartbeat:
        """The record of this process, as soon as it satisfies `until`."""

        def look() -> Heartbeat | None:
            found = records(self.directory).get(self.process.pid)
            return found if found is not None and until(found) else None

        return eventually(look)


def records(directory: Path) -> dict[int, Heartbeat]:
    """All readable records, by pid."""
    found = {}
    for path in directory.glob("*.beat"):
        try:
            record = decoded(path.read_bytes())
        except (LayoutError, OSError):
            continue
        found[record.pid] = record
    return found


def environment(directory: Path, variables: Mapping[str, str] = LAUNCHER) -> dict[str, str]:
    """An environment without anything that a launcher set, with our directory and `variables`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_SET_BY_LAUNCHERS)}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        clean.pop(name, None)
    return clean | {"STALLWATCH_DIR": str(directory), "PYTHONUNBUFFERED": "1", **variables}


@contextmanager
def running(
    command: Sequence[str | Path],
    directory: Path,
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] = LAUNCHER,
) -> Iterator[Program]:
    """Run a command as a launcher would and end it with the block."""
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=folder or directory.parent,
        env=environment(directory, variables),
    )
    with process:
        try:
            yield Program(process, directory)
        finally:
            process.kill()


def script(folder: Path, source: str, name: str = "train.py") -> list[str | Path]:
    """The command that runs this source as `python train.py`."""
    path = folder / name
    path.write_text(source)
    return [sys.executable, path]
