"""The directory where hooks write, and one record in it as the model's Heartbeat."""

import contextlib
import fcntl
import os
import stat
import struct
import time
from binascii import crc32
from collections.abc import Mapping
from functools import lru_cache
from operator import sub
from pathlib import Path

from stallwatch.encoding import json_of
from stallwatch.errors import Denied
from stallwatch.formats.outside_text import name_of
from stallwatch.hook import layout
from stallwatch.model.snapshot import CounterLook, GroupCounter, Heartbeat
from stallwatch.node import untrusted

# The hook's own order (hook: $STALLWATCH_DIR, else the first of these that it can write to).
DEFAULT_DIRECTORIES = (Path("/run/stallwatch/ranks"), Path("/dev/shm/stallwatch"))  # noqa: S108 - the hook's own
# A later layout may be longer than ours; its record is still read and then refused by name of its version.
RECORD_LIMIT_BYTES = 1 << 20
_ACCESS_LISTS = ("system.posix_acl_access", "system.posix_acl_default")


class LayoutError(ValueError):
    """These bytes are no record that this reader understands; the text says why and what to do."""


class TornRecord(LayoutError):
    """The record was read while it was written: read it again."""


def rank_directories(configured: str) -> tuple[Path, ...]:
    """Where to look: the configured directory, else every one that a hook may have chosen before we came."""
    return (Path(configured),) if configured else DEFAULT_DIRECTORIES


def prepare(directory: Path) -> None:
    """Create the rank directory (1777, as /tmp) and our own .daemon (0755) in it, before a job can take the name.

    Whoever owns the directory may remove the records of all others, and hooks obey him: where a user of the node has
    made it first, root takes it over, with all records in it. Raise Denied when somebody else holds a name and is not
    ours to move, or we may not create it.
    """
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise Denied(f"{directory} is not a directory", "Remove it or set daemon.rank_directory.")
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _own(descriptor, directory)
            _make_requests(descriptor, directory)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Denied(
            f"{error.filename or directory}: {error.strerror}",
            "Create it for the daemon's user (deploy/systemd/stallwatch.tmpfiles) or set daemon.rank_directory.",
        ) from error


def _own(descriptor: int, directory: Path) -> None:
    """See to it that nobody but root or we may remove others' records. Raise Denied or OSError."""
    status, user = os.fstat(descriptor), os.geteuid()
    if status.st_uid not in (0, user):
        if user != 0 or not directory.parent.stat().st_mode & stat.S_IWOTH:
            raise Denied(
                f"{directory} belongs to uid {status.st_uid}, who may remove the records of others in it: "
                "ranks there will not be asked for their recorders",
                f"As root: `chown root {directory} && chmod 1777 {directory}`, which keeps running jobs' records. "
                f"Without root: `export STALLWATCH_DIR={directory}-{user}` for the daemon and for the job.",
            )
        os.fchown(descriptor, 0, 0)
        for name in _ACCESS_LISTS:
            with contextlib.suppress(OSError):  # there is none, or this file system has no lists
                os.removexattr(descriptor, name)
    elif status.st_uid != user or stat.S_IMODE(status.st_mode) == 0o1777:
        return
    os.fchmod(descriptor, 0o1777)


def _make_requests(parent: int, directory: Path) -> None:
    """Make our own folder, if need be in the place of somebody else's. Raise Denied or OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(layout.REQUESTS, 0o755, dir_fd=parent)
    status = os.stat(layout.REQUESTS, dir_fd=parent, follow_symlinks=False)
    if not (stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid())):
        aside = f"{layout.REQUESTS}.{layout.new_mark()}"
        try:
            os.rename(layout.REQUESTS, aside, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            raise Denied(
                f"{directory}/{layout.REQUESTS} belongs to uid {status.st_uid}: ranks will not be asked for their "
                "recorders",
                "Remove it; the daemon makes its own.",
            ) from error
        os.mkdir(layout.REQUESTS, 0o755, dir_fd=parent)
        status = os.stat(layout.REQUESTS, dir_fd=parent, follow_symlinks=False)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != 0o755:
        # Ranks of every user look there, whatever our umask is.
        os.chmod(layout.REQUESTS, 0o755, dir_fd=parent)  # noqa: S103
    _hold(parent, (status.st_dev, status.st_ino))


_LOCK_TRIES, _BETWEEN_TRIES_SECONDS = 5, 0.005
_held: dict[tuple[int, int], int] = {}  # a descriptor of each folder of ours, for as long as this process lives


def _hold(parent: int, identity: tuple[int, int]) -> None:
    """Let hooks see that somebody reads here (hook/rank_directory.is_read): a lock ends with its process, however that
    ends."""
    if identity in _held:
        return
    folder = os.open(layout.REQUESTS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=parent)
    _held[identity] = folder
    for _ in range(_LOCK_TRIES):  # a hook that asks has the lock for some microseconds; a file system may have none
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        time.sleep(_BETWEEN_TRIES_SECONDS)


_NAMES = tuple(name for name, _ in layout.WORDS)


def read_heartbeat(path: Path) -> Heartbeat:
    """Read one record. Raise FileRefused, LayoutError or OSError; whose process it claims is not checked here."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = untrusted.open_regular(directory, path.name, RECORD_LIMIT_BYTES)
    finally:
        os.close(directory)
    try:
        return read_open(descriptor, str(path), os.fstat(descriptor).st_uid)
    finally:
        os.close(descriptor)


def read_open(descriptor: int, path: str, uid: int) -> Heartbeat:
    """Read a record that is open, of this path and owner. Raise LayoutError, TornRecord where it was met
    in mid-write, or OSError."""
    # One read: it lies in memory, and a longer one is of a later version, which its head tells.
    return decode(os.pread(descriptor, layout.RECORD_BYTES, 0), path, uid)


def request_body(request_id: int, rung: str, at_ns: int = 0) -> bytes:
    """The daemon's dump request, as the hook reads it. `at_ns` (CLOCK_MONOTONIC): dump at that moment, not sooner. That
    JSON is taken, too, is said: a job may bring a hook that is newer than the node's daemon."""
    return json_of({"id": request_id, "rung": rung, "json": True, **({"at_ns": at_ns} if at_ns else {})})


def decode(data: bytes, path: str, uid: int) -> Heartbeat:
    """Given the bytes of a record, its path and its file's owner, return what it says. Raise LayoutError with a
    sentence, TornRecord when a second read will do."""
    if len(data) < layout.RECORD_BYTES:
        raise LayoutError(f"{len(data)} bytes are no record of {layout.RECORD_BYTES}: it was truncated, or is none")
    data = data[: layout.RECORD_BYTES]
    magic, version, checksum = struct.unpack_from("<3q", data)
    if magic == 0:
        raise TornRecord("the record is still empty: its process has not written it yet")
    if magic != layout.MAGIC:
        raise LayoutError("not a record of stallwatch: its first bytes are foreign")
    if version not in layout.READABLE_VERSIONS:
        raise LayoutError(
            f"the record has version {version}, this reader takes {layout.READABLE_VERSIONS[0]} to {layout.VERSION}: "
            "bring stallwatch in training and on the node to neighbouring versions"
        )
    if _checksum(data) != checksum:
        raise TornRecord("the record's checksum is wrong: it is being written, or was damaged")
    return _values(data, version, path, uid)


_CHECKSUM_PLACE = layout.WORD["checksum"] * 8
_ZERO = bytes(8)


def _checksum(data: bytes) -> int:
    whole = memoryview(data)
    return crc32(whole[_CHECKSUM_PLACE + 8 :], crc32(_ZERO, crc32(whole[:_CHECKSUM_PLACE])))


def _values(data: bytes, version: int, path: str, uid: int) -> Heartbeat:
    values = layout.ALL_WORDS.unpack_from(data)
    if version >= layout.VERSION:
        word = dict(zip(_NAMES, values, strict=True))
    else:
        word = {
            name: value if since <= version else layout.UNKNOWN
            for (name, since), value in zip(layout.WORDS, values, strict=True)
        }
    text = _texts(data[layout.STRING_OFFSET : _STRINGS_END], version)
    count = word["group_count"]
    if not 0 <= count <= layout.GROUP_CAPACITY:
        raise LayoutError(f"the record counts {count} process groups and has room for {layout.GROUP_CAPACITY}: damaged")
    ended = word["ended"] == 1
    step = word["step"]
    times = _step_times(layout.ALL_SLOTS.unpack_from(data, layout.RING_OFFSET), step)
    return Heartbeat(
        path=path,
        uid=uid,
        pid=word["pid"],
        start_ticks=word["start_ticks"],
        pid_namespace=word["pid_namespace"],
        rank=word["rank"],
        local_rank=word["local_rank"],
        world_size=word["world_size"],
        node=text["node"],
        training_job=text["training_job"],
        epoch=text["epoch"],
        restart_count=word["restart_count"],
        is_child=word["is_child"] == 1,
        notify=word["notify"] != 0,
        step=step if step >= 0 else None,
        last_step_ns=times[-1] if times else None,
        step_durations_ns=tuple(map(sub, times[1:], times)),
        phase=text["phase"],
        phase_since_ns=word["phase_since_ns"],
        pulse_count=word["pulse_count"],
        pulse_ns=word["pulse_ns"],
        dump_started_ns=word["dump_started_ns"] if word["dump_started_ns"] > 0 else None,
        answered_request=word["answered_request"],
        ended=ended,
        exit_code=word["exit_code"] if ended and word["exit_code"] >= 0 else None,
        ended_ns=word["ended_ns"] if ended else None,
        groups=tuple(_group(data, index) for index in range(count)),
        groups_dropped=max(0, word["groups_dropped"]),
        attached_ns=word["attached_ns"],
        exception=text["exception"],
        errors=max(0, word["errors"]),
        looks=_looks(data),
        training_ident=_known(word["training_ident"]),
        training_tid=_known(word["training_tid"]),
        frame_changes=_known(word["frame_changes"]),
        refused_errno=max(0, word["refused_errno"]),
    )


def _known(word: int) -> int | None:
    return word if word >= 0 else None


def _step_times(ring: tuple[int, ...], step: int) -> tuple[int, ...]:
    """Times of the recent steps, oldest first. One slot less than the ring has: the writer may be filling the next."""
    if step < 1:
        return ()
    start, end = max(1, step - (layout.RING_SLOTS - 2)) % layout.RING_SLOTS, step % layout.RING_SLOTS + 1
    times = ring[start:end] if start < end else ring[start:] + ring[:end]
    if times[0] > 0 and times == tuple(sorted(times)):
        return times
    newest_run = len(times)
    while newest_run > 1 and 0 < times[newest_run - 2] <= times[newest_run - 1]:
        newest_run -= 1
    return times[max(0, newest_run - 1) :]


def _group(data: bytes, index: int) -> GroupCounter:
    recorder, pg_id, enqueued, completed = layout.ONE_GROUP.unpack_from(
        data, layout.GROUP_OFFSET + index * layout.ONE_GROUP.size
    )
    if not 0 <= recorder < len(layout.RECORDERS):
        raise LayoutError(f"the record names recorder {recorder}, which this reader does not know: damaged or newer")
    return GroupCounter(layout.RECORDERS[recorder], pg_id, enqueued, completed)


def _looks(data: bytes) -> tuple[CounterLook, ...]:
    # A record of a writer that knew of no looks has zeros there.
    area = data[layout.LOOK_OFFSET : layout.LOOK_OFFSET + layout.LOOK_SLOTS * layout.ONE_LOOK.size]
    return tuple(CounterLook(*values) for values in sorted(layout.ONE_LOOK.iter_unpack(area)) if values[0] > 0)


_STRINGS_END = layout.STRING_OFFSET + sum(size for _, size, _ in layout.STRINGS)


# Names of a job, a node, a phase: what eight ranks say each second is nearly always the same.
@lru_cache(maxsize=256)
def _texts(strings: bytes, version: int) -> Mapping[str, str]:
    texts = {}
    offset = 0
    for name, size, since in layout.STRINGS:
        raw = strings[offset : offset + size].split(b"\0", 1)[0]
        texts[name] = name_of(raw.decode("utf-8", "replace")) if since <= version else ""
        offset += size
    return texts
