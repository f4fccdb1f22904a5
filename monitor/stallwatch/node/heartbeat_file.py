"""The directory where hooks write, and one record in it as the model's Heartbeat."""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.errors import Denied
from stallwatch.formats.outside_text import name_of
from stallwatch.hook import layout
from stallwatch.model.snapshot import CounterLook, GroupCounter, Heartbeat
from stallwatch.node import untrusted

# The hook's own order (hook: $STALLWATCH_DIR, else the first of these that it can write to).
DEFAULT_DIRECTORIES = (Path("/run/stallwatch/ranks"), Path("/dev/shm/stallwatch"))  # noqa: S108 - the hook's own
# A later layout may be longer than ours; its record is still read and then refused by name of its version.
RECORD_LIMIT_BYTES = 1 << 20


def rank_directories(configured: str) -> tuple[Path, ...]:
    """Where to look: the configured directory, else every one that a hook may have chosen before we came."""
    return (Path(configured),) if configured else DEFAULT_DIRECTORIES


def prepare(directory: Path) -> None:
    """Create the rank directory (1777, as /tmp) and our own .daemon (0755) in it, before a job can take the name.

    Raise Denied when somebody else holds a name or we may not create it.
    """
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise Denied(f"{directory} is not a directory", "Remove it or set daemon.rank_directory.")
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != 0o1777:
            directory.chmod(0o1777)
        requests = directory / ".daemon"
        requests.mkdir(mode=0o755, exist_ok=True)
        status = requests.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != 0o755:
            requests.chmod(0o755)  # ranks of every user look there, whatever our umask is
    except OSError as error:
        raise Denied(
            f"{error.filename or directory}: {error.strerror}",
            "Create it for the daemon's user (RuntimeDirectory= in the unit) or set daemon.rank_directory.",
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()):
        raise Denied(
            f"{requests} belongs to uid {status.st_uid}: ranks will not be asked for their recorders",
            "Remove it; the daemon makes its own.",
        )


def to_heartbeat(record: layout.Record, path: str, uid: int) -> Heartbeat:
    """Name the fields of a decoded record as the model does."""
    body: dict[str, Any] = {
        name: name_of(value) if type(value) is str else value for name, value in record._asdict().items()
    }
    body["groups"] = tuple(GroupCounter(*group) for group in record.groups)
    body["looks"] = tuple(CounterLook(*look) for look in record.looks)
    return Heartbeat(path=path, uid=uid, **body)


def read_heartbeat(path: Path) -> Heartbeat:
    """Read one record. Raise Refused, layout.LayoutError or OSError; whose process it claims is not checked here."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        data, status = untrusted.read_regular(directory, path.name, RECORD_LIMIT_BYTES)
    finally:
        os.close(directory)
    return to_heartbeat(layout.decode(data), str(path), status.st_uid)


def request_body(request_id: int, rung: str, at_ns: int = 0) -> bytes:
    """The daemon's dump request, as the hook reads it. `at_ns` (CLOCK_MONOTONIC): dump at that moment, not sooner."""
    return msgspec.json.encode({"id": request_id, "rung": rung, **({"at_ns": at_ns} if at_ns else {})})
