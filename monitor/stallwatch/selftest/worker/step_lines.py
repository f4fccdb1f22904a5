"""What a rank tells of each step: a JSON object a line, in a file of its own, whole at every moment."""

import json
import os
import threading
import time
from typing import Any, Optional

SCHEMA_VERSION = 1
IMPORT = "import torch"  # the step that is as slow as a file system, and has the deadline of a start
NO_TORCH = "cannot import torch"  # of a crash: the environment's fault, and not this program's


def report_name(rank: int) -> str:
    """Return the name of a rank's file of JSON lines in the folder of reports."""
    return f"rank-{rank}.jsonl"


class Wrong(Exception):
    """An operation ended and its result is not what it must be."""


class StepReport:
    """Written by the main thread, read by the thread that keeps the deadline."""

    def __init__(self, rank: int, directory: Optional[str]) -> None:
        self.rank = rank
        self.index = -1
        self.step = "start"
        self.bytes: Optional[int] = None
        self.since = time.monotonic()
        self.failures: list[str] = []
        self.lines: list[dict[str, Any]] = []  # ended steps, for a summary
        self._lock = threading.Lock()
        self._file: Optional[int] = None
        if directory:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(os.path.join(directory, report_name(rank)), flags, 0o600)

    @property
    def where(self) -> str:
        """The step that was begun last, with its size, for people."""
        return name_of(self.step, self.bytes)

    def begin(self, step: str, size: Optional[int]) -> None:
        """Tell that a step begins; `size` in bytes, None for a step that has none."""
        self.index += 1
        self.step, self.bytes, self.since = step, size, time.monotonic()
        self._write({"kind": "begin", "step": step, "bytes": size})

    def end(self, outcome: str, detail: str = "", **facts: Any) -> None:
        """`outcome` is "ok", "wrong", "error" or "unsupported"."""
        seconds = time.monotonic() - self.since
        line = {
            "kind": "end", "step": self.step, "bytes": self.bytes, "outcome": outcome, "detail": detail,
            "seconds": round(seconds, 6), "facts": facts,
        }  # fmt: skip
        self.lines.append(line)
        if outcome in ("wrong", "error"):
            self.failures.append(f"{self.where}: {detail}")
        self._write(line)

    def finished(self) -> None:
        """Tell that all steps are over."""
        self._write({"kind": "finished"})

    def crash(self, detail: str) -> None:
        """Our own mistake, which says nothing about the node."""
        self._write({"kind": "crash", "detail": detail})

    def _write(self, line: "dict[str, Any]") -> None:
        if self._file is None:
            return
        line = dict(line, rank=self.rank, at_ns=time.monotonic_ns(), schema_version=SCHEMA_VERSION)
        with self._lock:
            os.write(self._file, json.dumps(line).encode() + b"\n")


def name_of(step: str, size: Optional[int]) -> str:
    """Return a step's name for people, with its size in bytes where it has one: "all_reduce 32 KiB"."""
    return step if size is None else f"{step} {size_text(size)}"


def size_text(size: int) -> str:
    """Bytes as people write them: 8 B, 32 KiB, 256 MiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"
