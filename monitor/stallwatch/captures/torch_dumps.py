"""Flight recorder dumps that torch writes by itself: found by the rank's environment, asked for through the pipe that
its user set up, and read by a process that reads no more than that user could.

`python -m stallwatch.captures.torch_dumps`: request as JSON on standard input; a line of JSON and the dump as answer.
"""

import contextlib
import os
import re
import stat
import sys
import time
from functools import partial
from typing import NamedTuple

import msgspec

from stallwatch.captures.as_user import become
from stallwatch.captures.folder import DUMP_LIMIT_BYTES, NotCaptured
from stallwatch.encoding import json_of
from stallwatch.formats.outside_text import name_of, path_bytes, path_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.snapshot import RankSample
from stallwatch.node import untrusted
from stallwatch.node.children import module_of_ours
from stallwatch.node.framing import as_child
from stallwatch.node.permission import check_file
from stallwatch.node.procfs import ENVIRONMENT_LIMIT_BYTES, TICKS_PER_SECOND, ProcessDirectory
from stallwatch.node.run_once import RunOnce

_READ_SECONDS = 5.0
_MAPS_LIMIT_BYTES = 32 << 20
_FRESH_SECONDS = 600.0
_POLL_SECONDS = 0.1
_NAMES = (
    *("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    *("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_HCCL_DEBUG_INFO_PIPE_FILE"),
    *("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
    *("XDG_CACHE_HOME", "HOME"),
)
_PICKLE_STOP = b"."
# An entry's `thread_id` (2.8 and later) is the thread's pthread_t in decimal digits; torch's pickler writes a text as
# BINUNICODE: X, its length in four bytes, and itself. On 64 bits an address of user space has up to 15 digits.
_THREAD_IDS = re.compile(rb"X[\x0b-\x14]\0\0\0(\d{11,20})", re.DOTALL)
# glibc keeps a thread's descriptor, whose address pthread_t is, at the end of the mapping of its stack (the main
# thread's in a small one of its own), above it only static thread-local storage.
_DESCRIPTOR_FROM_END_BYTES = 64 << 10


class TorchDump(NamedTuple):
    """A dump that torch wrote by itself."""

    path: str
    data: bytes


class _Request(msgspec.Struct, frozen=True):
    uid: int
    gid: int
    groups: tuple[int, ...]
    pid: int
    start_ticks: int
    paths: tuple[str, ...]
    after_wall_ns: int  # older files tell of another day
    started_wall_ns: int  # and older ones than the process of an earlier life
    seconds: float  # to wait for one


class _Answer(msgspec.Struct, frozen=True):
    path: str = ""
    problem: str = ""


_ANSWER = msgspec.json.Decoder(_Answer)


def take(sample: RankSample, *, press: bool, seconds: float) -> TorchDump:
    """Return the newest dump of this process that is whole; with `press` ask for one where the user set up a pipe.

    Raise NotCaptured with what was tried; ProcessLookupError when the process is gone.
    """
    with ProcessDirectory(sample.pid) as directory:
        status = directory.status()
        try:
            environment = _parse(directory.read_whole("environ", ENVIRONMENT_LIMIT_BYTES))
        except PermissionError as error:
            raise NotCaptured("its environment is not ours to read, so nobody knows where torch would write") from error
        age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - directory.stat().start_ticks / TICKS_PER_SECOND
    now_ns = time.time_ns()
    pressed = ""
    after_ns, wait_seconds = now_ns - int(_FRESH_SECONDS * 1e9), 0.0
    if press:
        pressed = press_pipe(sample, environment, status.uids)
        if not pressed:
            after_ns, wait_seconds = now_ns - 1_000_000_000, seconds  # file systems count whole ticks
    request = _Request(
        status.uids[0], status.gids[0], status.groups, sample.pid, sample.start_ticks,
        candidates(environment, sample.rank), after_ns, now_ns - int(age_seconds * 1e9), wait_seconds,
    )  # fmt: skip
    answer, data = _ask(request)
    if answer.problem:
        raise NotCaptured("; ".join(filter(None, (answer.problem, pressed))))
    with ProcessDirectory(sample.pid) as directory:
        if not written_by(directory.read_whole("maps", _MAPS_LIMIT_BYTES), data):
            raise NotCaptured(
                f"{answer.path} is of another process of its user with the same rank (its threads are not this one's): "
                "give each job a TORCH_FR_DUMP_TEMP_FILE of its own"
            )
    return TorchDump(answer.path, data)


def written_by(maps: bytes, dump: bytes) -> bool:
    """Given /proc/<pid>/maps and a dump as torch writes it, return whether that process may have written it: it has a
    thread that the dump names. Before torch 2.8 a dump names none, which proves nothing.

    A dump's default name is made of home directory and rank alone, and two jobs of one user share both (live: the dump
    of one job that had timed out made rank 0 of its neighbour a culprit)."""
    threads = {int(digits) for digits in _THREAD_IDS.findall(dump)}
    if not threads:
        return True
    ends = (int(line.split(b" ", 1)[0].partition(b"-")[2], 16) for line in maps.splitlines() if b" rw-p " in line)
    return any(0 < end - thread <= _DESCRIPTOR_FROM_END_BYTES for end in ends for thread in threads)


def candidates(environment: dict[str, str], rank: int) -> tuple[str, ...]:
    """Return where torch writes a rank's dump (`path_of`): what the user set, else the defaults of its releases."""
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        if prefix := environment.get(name, ""):
            return (f"{prefix}{rank}",)
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache"
    return (
        f"{cache}/torch/comm_lib_trace_rank_{rank}",  # 2.9 and later
        f"{cache}/torch/nccl_trace_rank_{rank}",
        f"/tmp/nccl_trace_rank_{rank}",  # noqa: S108 - torch's own choice, up to 2.7
    )


def press_pipe(sample: RankSample, environment: dict[str, str], owners: tuple[int, ...]) -> str:
    """Write a byte into the dump pipe that the user set up, without waiting. Return why it could not be, else ""."""
    stem = next((environment[name] for name in _NAMES if "PIPE_FILE" in name and environment.get(name)), "")
    if not stem:
        return "no dump pipe is set up (TORCH_NCCL_DEBUG_INFO_PIPE_FILE)"
    path = f"{stem}{sample.rank}.pipe"
    try:
        with ProcessDirectory(sample.pid) as directory:
            if directory.stat().start_ticks != sample.start_ticks:
                raise ProcessLookupError(f"pid {sample.pid} belongs to another process now")
            root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.descriptor)
        try:
            _write_byte(root, os.fsdecode(path_bytes(path)), owners)
        finally:
            os.close(root)
    except untrusted.FileRefused as refused:
        return name_of(str(refused))
    except FileNotFoundError:
        # 2.9 to 2.11 look only at the older name when they decide whether to make the pipe.
        hint = "" if environment.get("TORCH_NCCL_TRACE_BUFFER_SIZE", "0") not in ("", "0") else (
            "; torch before 2.12 makes it only where TORCH_NCCL_TRACE_BUFFER_SIZE is set"
        )  # fmt: skip
        return f"{path} is not there{hint}"
    except OSError as error:
        if error.errno == 6:  # ENXIO
            return f"{path}: nobody reads it: no process group yet, the recorder is off, or its thread has ended"
        return f"{path}: {error.strerror}"
    return ""


def _write_byte(root: int, path: str, owners: tuple[int, ...]) -> None:
    """What it is is looked at before it is opened for writing, and that very thing is opened."""
    descriptor = untrusted.open_place(root, path, users=owners)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISFIFO(status.st_mode) or status.st_uid not in owners:
            raise untrusted.FileRefused(f"{path}: not a pipe of the rank's user; not written to")
        pipe = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(descriptor)
    try:
        with contextlib.suppress(BlockingIOError):  # full: it was asked before
            os.write(pipe, b"1")
    finally:
        os.close(pipe)


def _parse(data: bytes) -> dict[str, str]:
    pairs = (path_of(entry).partition("=") for entry in data.split(b"\0"))
    return {name: value for name, _, value in pairs if name in _NAMES}


def _ask(request: _Request) -> tuple[_Answer, bytes]:
    seconds = request.seconds + _READ_SECONDS
    command, asked = module_of_ours("stallwatch.captures.torch_dumps"), json_of(request)
    ended = RunOnce(command, asked, leads_group=False, limit_bytes=2 * DUMP_LIMIT_BYTES).finish(seconds)
    if ended is None:
        raise NotCaptured(f"it could not be read within {seconds:.0f} s")
    head, _, data = ended.output.partition(b"\n")
    try:
        return _ANSWER.decode(head), data
    except NOT_JSON as error:
        raise NotCaptured(f"its reader failed (exit code {ended.code})") from error


def find(request: _Request) -> tuple[_Answer, bytes]:
    """In the reader: the newest file that is new enough, whole, and the user's own."""
    person = become(request.uid, request.gid, request.groups)
    deadline = time.monotonic() + request.seconds
    problems: dict[str, str] = {}
    with ProcessDirectory(request.pid) as process:
        if process.stat().start_ticks != request.start_ticks:
            return _Answer(problem="the process has ended"), b""
        root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process.descriptor)
    try:
        last: dict[str, tuple[int, int]] = {}
        while True:
            for path in request.paths:
                check = None if person is None else partial(check_file, person, root, path)
                try:
                    descriptor = untrusted.open_in_root(
                        root, os.fsdecode(path_bytes(path)), DUMP_LIMIT_BYTES, check, users=(request.uid,)
                    )
                except (OSError, untrusted.FileRefused) as error:
                    said = str(error) if isinstance(error, untrusted.FileRefused) else error.strerror
                    problems[path] = name_of(f"{said}")
                    continue
                try:
                    status = os.fstat(descriptor)
                    size, changed_ns = status.st_size, status.st_mtime_ns
                    if problem := _not_to_be_used(request, status):
                        problems[path] = problem
                        continue
                    # torch writes in place: whole is what has stopped to change and ends as a pickle does.
                    if last.get(path) == (size, changed_ns):
                        data = untrusted.read_bounded(descriptor, DUMP_LIMIT_BYTES)
                        if len(data) == size and data.endswith(_PICKLE_STOP):
                            return _Answer(path), data
                        problems[path] = "half-written"
                        continue
                    problems[path] = "still being written"
                    last[path] = (size, changed_ns)
                    deadline = max(deadline, time.monotonic() + 2 * _POLL_SECONDS)
                finally:
                    os.close(descriptor)
            if time.monotonic() >= deadline:
                said = "; ".join(f"{path}: {why}" for path, why in problems.items())
                return _Answer(problem=said), b""
            time.sleep(_POLL_SECONDS)
    finally:
        os.close(root)


def _not_to_be_used(request: _Request, status: os.stat_result) -> str:
    if status.st_uid != request.uid:
        return "another user's"
    if status.st_mtime_ns < request.after_wall_ns:
        return "not written lately"
    return "older than this process" if status.st_mtime_ns < request.started_wall_ns else ""


def main() -> None:
    """Find the dump that standard input describes, and write it out."""
    answer, data = find(msgspec.json.decode(sys.stdin.buffer.read(), type=_Request))
    sys.stdout.buffer.write(json_of(answer) + b"\n" + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    as_child(main)
