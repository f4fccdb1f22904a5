"""How much may be written for an incident while it is open: what ranks answer is theirs to choose, and the state
directory is everybody's. `incidents.keep_bytes` bounds what is kept; this bounds what is added to it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

# Written as long as a look has few of them, so that there is a verdict: attempts, processes, heartbeats, stacks of a
# usual size, what is pending.
SMALL_BYTES = 256 << 10
_FREE_BYTES = 4 << 20
_BLOCK_BYTES = 4096  # what the smallest file takes
_LARGEST_INCIDENT_FILE = 4 << 20
_MEBIBYTE = 1 << 20


class ByteLimits(msgspec.Struct, frozen=True):
    """Bytes of one rank in this incident, of this incident, of all bundles of its owner, of all that are kept."""

    rank: int
    incident: int
    owner: int
    whole: int

    @classmethod
    def of(cls, keep_bytes: int) -> "ByteLimits":
        """Shares of `incidents.keep_bytes`; small settings still leave room for a dump of a usual size."""
        keep = max(keep_bytes, 256 * _MEBIBYTE)
        # A ring of 20,000 entries with Python and C++ stacks is about 120 MiB.
        return cls(rank=min(keep // 8, 256 * _MEBIBYTE), incident=keep // 4, owner=keep // 2, whole=keep)


class _Job(msgspec.Struct, frozen=True):
    owner: str = ""


class _Incident(msgspec.Struct, frozen=True):
    job: _Job


_INCIDENT = msgspec.json.Decoder(_Incident)


class Allowance:
    """Of one look at one incident."""

    def __init__(self, bundle: Path, owner: str, limits: ByteLimits) -> None:
        """`owner` as the incident's job has it. What the bundles take is measured when something large is written."""
        self._bundle = bundle
        self._owner = owner
        self._limits = limits
        self._taken: dict[str, int] | None = None  # by what it counts for
        self._of_rank: dict[int, int] = {}
        self._small = 0

    def refusal(self, rank: int | None, size: int) -> str:
        """Return why a file of so many bytes is too much, of a rank where it is one's; "" when there is room."""
        if size <= SMALL_BYTES and self._small < _FREE_BYTES:
            return ""
        if self._taken is None:
            self._taken = self._measured()
        if rank is not None and rank not in self._of_rank:
            self._of_rank[rank] = size_of(self._bundle / "ranks" / str(rank))
        bounds = (
            (0 if rank is None else self._of_rank[rank], self._limits.rank, "one rank in an incident"),
            (self._taken["incident"], self._limits.incident, "one incident"),
            (self._taken["owner"], self._limits.owner, "all incidents of one user"),
            (self._taken["whole"], self._limits.whole, "all incidents"),
        )
        for taken, limit, whose in bounds:
            if taken + size > limit:
                return f"with its {size} bytes {whose} would take more than {limit} (incidents.keep_bytes)"
        return ""

    def add(self, rank: int | None, size: int) -> None:
        """Count bytes that were written, in whole blocks, against all bounds; `rank`: None of no rank."""
        size = -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
        self._small += size if size <= SMALL_BYTES else 0
        if self._taken is not None:
            self._taken = {whose: taken + size for whose, taken in self._taken.items()}
        if rank is not None and rank in self._of_rank:
            self._of_rank[rank] += size

    def _measured(self) -> dict[str, int]:
        taken = {"incident": size_of(self._bundle), "owner": 0, "whole": 0}
        for folder in _folders(self._bundle.parent):
            size = size_of(folder)
            taken["whole"] += size
            if folder == self._bundle or _owner_of(folder) == self._owner:
                taken["owner"] += size
        return taken


def size_of(folder: Path) -> int:
    """Return the bytes that a folder takes, with all below it; what vanishes meanwhile counts nothing."""
    total = 0
    for path, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                total += taken_by(os.lstat(os.path.join(path, name)))
    return total


def taken_by(status: os.stat_result) -> int:
    """Of a disk: in blocks, of which the smallest file has one, and folders too."""
    return max(status.st_size, status.st_blocks * 512)


def _folders(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _owner_of(bundle: Path) -> str | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        path = bundle / "incident.json"
        if path.stat().st_size <= _LARGEST_INCIDENT_FILE:
            return _INCIDENT.decode(path.read_bytes()).job.owner
    return None
