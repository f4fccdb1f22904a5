"""Freezes processes as `docker pause`, a scheduler or a suspended pod does: by a control group."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class Freezer:
    """Of one job. Version 1 of control groups has a hierarchy for it, version 2 a file in each group."""

    def __init__(self, name: str) -> None:
        old = _ROOT / "freezer"
        self._group = (old if old.is_dir() else _ROOT) / f"stallwatch-control-{os.getpid()}-{name}"
        self._words = ("freezer.state", "FROZEN", "THAWED") if old.is_dir() else ("cgroup.freeze", "1", "0")

    def freeze(self, pids: Sequence[int]) -> None:
        """Raise OSError where control groups are not ours to make."""
        self._group.mkdir()
        for pid in pids:
            (self._group / "cgroup.procs").write_text(str(pid))
        (self._group / self._words[0]).write_text(self._words[1])

    def thaw(self) -> None:
        """Let them go on, in the group that holds the whole node."""
        (self._group / self._words[0]).write_text(self._words[2])
        for pid in (self._group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (self._group.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            self._group.rmdir()
