"""What a frame can mean, and how the rows of the tables are written."""

import re
from typing import Literal, NamedTuple

from stallwatch.model.verdict import Where

Role = Literal[
    # What a thread is inside of, whoever called it.
    "collective", "backward", "init", "store", "teardown", "gpu_sync", "file_lock",
    # Work that calls the job's own code back: the meaning reaches inward through the job's frames.
    "dataloader", "checkpoint", "compile",
    # Ways to wait, refined by what surrounds them.
    "lock", "join", "queue", "process_queue", "child", "socket", "tracker", "filesystem", "idle",
]  # fmt: skip

ROLE_WHERE: dict[Role, Where] = {
    "collective": "collective", "backward": "collective", "init": "init", "store": "store", "teardown": "teardown",
    "gpu_sync": "gpu_sync", "file_lock": "lock", "dataloader": "dataloader", "checkpoint": "checkpoint",
    "compile": "compile", "lock": "lock", "join": "lock", "queue": "lock", "process_queue": "lock",
    "child": "user_code", "socket": "socket", "tracker": "socket", "filesystem": "filesystem", "idle": "unknown",
}  # fmt: skip


class Meaning(NamedTuple):
    role: Role
    detail: str  # a predicate: "waits for …"

    @property
    def where(self) -> Where:
        return ROLE_WHERE[self.role]


class Row(NamedTuple):
    module: re.Pattern[str]
    functions: re.Pattern[str] | None  # None: every function
    meaning: Meaning
    stdlib: bool


def modules(role: Role, detail: str, *patterns: tuple[str, str] | str) -> tuple[Row, ...]:
    """Modules of a framework by dotted name, also beneath a checkout's path; a pair names the functions meant."""
    return _rows(Meaning(role, detail), patterns, r"(?:^|\.)(?:{})(?:\.|$)", stdlib=False)


def packages(role: Role, detail: str, *patterns: tuple[str, str] | str) -> tuple[Row, ...]:
    """Installed packages by their top-level names."""
    return _rows(Meaning(role, detail), patterns, r"^(?:{})(?:\.|$)", stdlib=False)


def standard(role: Role, detail: str, *patterns: tuple[str, str] | str) -> tuple[Row, ...]:
    """Modules of Python's library by their whole names."""
    return _rows(Meaning(role, detail), patterns, r"^(?:{})$", stdlib=True)


def _rows(
    meaning: Meaning, patterns: tuple[tuple[str, str] | str, ...], frame: str, *, stdlib: bool
) -> tuple[Row, ...]:
    rows = []
    for pattern in patterns:
        module, functions = (pattern, "") if isinstance(pattern, str) else pattern
        only = re.compile(rf"(?:{functions})$") if functions else None
        rows.append(Row(re.compile(frame.replace("{}", module)), only, meaning, stdlib))
    return tuple(rows)
