"""Shares of the cores as systemd gives them: half to its services, by their CPUWeight=, half to users, alike."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.integration.node.service import unit

CONTROLLER = Path("/sys/fs/cgroup/cpu")  # version 1; its shares are 1024 for a weight of 100


def are_possible() -> bool:
    return os.access(CONTROLLER / "cpu.shares", os.W_OK)


def weight_of(path: Path) -> int:
    """CPUWeight= of a unit; 100 where it says none."""
    return int(unit("Service", path).get("CPUWeight", ["100"])[0])


class Slices:
    def __init__(self, base: Path) -> None:
        self._base = base
        self._made: list[Path] = []

    def put(self, place: str, weight: int, pid: int) -> None:
        """Have a process, and all that it has started, share the cores as `place` ("user.slice/user-1000")."""
        folder = self._base
        for part in Path(place).parts:
            folder /= part
            if not folder.exists():
                folder.mkdir()
                self._made.append(folder)
        (folder / "cpu.shares").write_text(str(weight * 1024 // 100))
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(OSError):  # it has ended
                    (folder / "cgroup.procs").write_text(str(one.pid))

    def put_units(self, pids: Mapping[Path, int]) -> None:
        """Given each unit's process."""
        for path, pid in pids.items():
            self.put(f"system.slice/{path.name}", weight_of(path), pid)

    def put_user(self, uid: int, pid: int) -> None:
        self.put(f"user.slice/user-{uid}.slice", 100, pid)

    def close(self) -> None:
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # somebody still lives there
                folder.rmdir()


@contextlib.contextmanager
def slices() -> Iterator[Slices]:
    """Below the control group that we are in."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(line.split(":", 2)[2] for line in lines if line.split(":", 2)[1] == "cpu")
    made = Slices(CONTROLLER / own.lstrip("/"))
    try:
        yield made
    finally:
        made.close()
