"""/proc/<pid>: pure parsers, and a directory that stays the same process even when its pid is used again."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from signal import SIGKILL
from typing import NamedTuple

from stallwatch.formats.outside_text import name_of

# Enough for every file that is read whole here; a process' status with 4,096 groups is the longest.
_LIMIT_BYTES = 1 << 16
_AGAIN_BYTES = 4096
_STATE_BYTES = 128  # of a stat line: pid, a name of 63 characters at most (a kernel thread's), state
ENVIRONMENT_LIMIT_BYTES = 1 << 20  # more of a process' environment is not read
_PF_EXITING = 0x4  # linux/sched.h
_KILLED = 1 << (SIGKILL - 1)  # exit_group and every fatal signal leave it to each thread
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """/proc/<pid>/stat (proc_pid_stat(5)); ticks of sysconf(_SC_CLK_TCK)."""

    pid: int
    command: str
    state: str  # R S D T t Z X I
    parent_pid: int
    terminal: int  # 0: no controlling terminal
    cpu_ticks: int
    threads: int
    start_ticks: int
    resident_pages: int
    exit_status: int  # as wait(2) gives it; 0 also when we may not know
    major_faults: int = 0
    processor: int = -1  # on which it ran last
    reaped_ticks: int = 0  # of CPU, of the children that it has waited for, and of theirs
    process_group: int = 0  # the pid of who began it; 0: of another pid namespace
    session: int = 0  # the same
    stack_start: int = 0  # its address: exec draws another one, fork does not; 0 where we may not know


class Status(NamedTuple):
    """What of /proc/<pid>/status stat does not say."""

    uids: tuple[int, ...]  # real, effective, saved, file system
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    tracer_pid: int
    namespace_pids: tuple[int, ...]  # ours first, the process' own last
    wakes: int | None = None  # voluntary context switches of the thread; of a process, its main thread's


def parse_stat(data: bytes) -> Stat:
    """Raise ValueError on anything that is not a stat line. A command may hold spaces and parentheses."""
    opening, closing = data.index(b"("), data.rindex(b")")
    fields = data[closing + 2 :].split()
    if len(fields) < 22:
        raise ValueError(f"stat has {len(fields) + 2} fields")
    return Stat(
        pid=int(data[:opening]),
        command=name_of(data[opening + 1 : closing]),
        state=fields[0].decode("ascii"),
        parent_pid=int(fields[1]),
        terminal=int(fields[4]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        resident_pages=int(fields[21]),
        exit_status=int(fields[49]) if len(fields) > 49 else 0,
        major_faults=int(fields[9]),
        processor=int(fields[36]) if len(fields) > 36 else -1,
        reaped_ticks=int(fields[13]) + int(fields[14]),
        process_group=int(fields[2]),
        session=int(fields[3]),
        stack_start=int(fields[25]) if len(fields) > 25 else 0,
    )


def parse_motion(data: bytes) -> tuple[str, int]:
    """Given such a line, return what changes from tick to tick: `Stat.state`, and `Stat.cpu_ticks`."""
    fields = data[data.rindex(b")") + 2 :].split(None, 13)
    if len(fields) < 14:
        raise ValueError(f"stat has {len(fields) + 2} fields")
    return fields[0].decode("ascii"), int(fields[11]) + int(fields[12])


def parse_status(data: bytes) -> Status:
    """Raise ValueError when the Uid line is missing."""
    data = b"\n" + data
    uids = _field(data, b"\nUid:")
    if uids is None:
        raise ValueError("status has no Uid")
    wakes = _field(data, b"\nvoluntary_ctxt_switches:")
    return Status(
        uids=_numbers(uids),
        gids=_numbers(_field(data, b"\nGid:") or b""),
        groups=_numbers(_field(data, b"\nGroups:") or b""),
        tracer_pid=int(_field(data, b"\nTracerPid:") or b"0"),
        namespace_pids=_numbers(_field(data, b"\nNSpid:") or b""),
        wakes=None if wakes is None else int(wakes),
    )


def parse_pauses(data: bytes) -> tuple[int, int | None]:
    """Given the same file, return what changes from tick to tick: the tracer's pid, and `Status.wakes`."""
    wakes = _field(data, b"\nvoluntary_ctxt_switches:")
    return int(_field(data, b"\nTracerPid:") or b"0"), None if wakes is None else int(wakes)


def _field(data: bytes, start: bytes) -> bytes | None:
    """What stands in that line: the kernel escapes line ends in a name, which is the first line."""
    at = data.find(start)
    if at < 0:
        return None
    end = data.find(b"\n", at + 1)
    return data[at + len(start) : None if end < 0 else end]


def _numbers(text: bytes) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split())


def parse_schedstat(data: bytes) -> int:
    """Given /proc/<pid>/task/<tid>/schedstat, return how long the thread has been on a processor, in nanoseconds. Raise
    ValueError when that is not said."""
    try:
        return int(data.split()[0])
    except IndexError as error:
        raise ValueError("schedstat is empty") from error


def parse_io(data: bytes) -> tuple[int, int]:
    """Return bytes read and written by system calls (rchar, wchar): page cache and network file systems count too.
    Raise ValueError when they are missing."""
    data = b"\n" + data
    read_bytes, written_bytes = _field(data, b"\nrchar:"), _field(data, b"\nwchar:")
    if read_bytes is None or written_bytes is None:
        raise ValueError("io has no rchar or no wchar")
    return int(read_bytes), int(written_bytes)


def parse_wchan(data: bytes) -> str | None:
    """None: running, or not ours to know; the kernel writes 0 for both."""
    text = name_of(data.strip(b"\0\n "))
    return None if text in ("", "0") else text


def parse_file_limit(data: bytes) -> int:
    """Given /proc/<pid>/limits, return how many files the process may have open. Raise ValueError when it is not said
    or is no number."""
    for line in data.splitlines():
        if line.startswith(b"Max open files"):
            return int(line.split()[3])
    raise ValueError("limits has no line for open files")


def wait_status(status: int) -> tuple[int | None, int | None]:
    """Given a wait(2) status, return exit code and signal; one of them is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


class ProcessDirectory:
    """An open /proc/<pid>. The descriptor names the process itself: after its end every read raises
    ProcessLookupError, whoever gets the pid next. Files that are read every tick stay open."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        """Raise ProcessLookupError when there is no such process."""
        self.pid = pid
        self._main_stat = f"task/{pid}/stat"
        self._kept: dict[str, int] = {}
        try:
            self.descriptor = os.open(f"{proc}/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ProcessLookupError(f"no process {pid}") from error

    def read(self, name: str, limit_bytes: int = _LIMIT_BYTES) -> bytes:
        """Raise ProcessLookupError when the process is gone, PermissionError when the file is not ours to read."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.descriptor)
        except FileNotFoundError as error:
            raise ProcessLookupError(f"process {self.pid} has no {name}") from error
        try:
            return os.read(descriptor, limit_bytes)
        finally:
            os.close(descriptor)

    def read_whole(self, name: str, limit_bytes: int) -> bytes:
        """As `read`, for files that the kernel gives out in pieces: maps, a long environment."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.descriptor)
        except FileNotFoundError as error:
            raise ProcessLookupError(f"process {self.pid} has no {name}") from error
        parts, left = [], limit_bytes
        try:
            while left > 0 and (part := os.read(descriptor, min(left, 1 << 16))):
                parts.append(part)
                left -= len(part)
        finally:
            os.close(descriptor)
        return b"".join(parts)

    def read_again(self, name: str, limit_bytes: int = _AGAIN_BYTES) -> bytes:
        """As `read`, for a file that is read every tick."""
        descriptor = self._kept.get(name)
        if descriptor is None:
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.descriptor)
            except FileNotFoundError as error:
                raise ProcessLookupError(f"process {self.pid} has no {name}") from error
            self._kept[name] = descriptor
        return os.pread(descriptor, limit_bytes, 0)

    def let_go(self, name: str) -> None:
        """Close a file that `read_again` has kept open."""
        if (descriptor := self._kept.pop(name, None)) is not None:
            os.close(descriptor)

    def names(self, name: str) -> list[str]:
        """Entries of a directory such as "task". Raise as `read` does."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        except FileNotFoundError as error:
            raise ProcessLookupError(f"process {self.pid} has no {name}") from error
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def stat(self) -> Stat:
        """/proc/PID/stat, read now. A process whose main thread has ended alone is shown as a zombie; its state is that
        of a thread which lives on, while there is one that is not ending, too."""
        stat = parse_stat(self.read_again("stat"))
        if stat.state != "Z" or stat.threads < 2:
            return stat
        return stat._replace(state=next((state for _, state in self._living()), stat.state))

    def living_thread(self) -> int:
        """The number by which the process' memory can be read: its pid, or another thread's where the main one has
        ended alone. Raise as `stat` does."""
        stat = parse_stat(self.read_again("stat"))
        others = self._living() if stat.state == "Z" and stat.threads > 1 else iter(())
        return next((tid for tid, _ in others), self.pid)

    def _living(self) -> Iterator[tuple[int, str]]:
        """Threads that are not ending, each with its state."""
        for tid in self.names("task"):
            with contextlib.suppress(OSError, ValueError):
                data = self.read(f"task/{tid}/stat")
                fields = data[data.rindex(b")") + 2 :].split(None, 7)
                status = b"\n" + self.read(f"task/{tid}/status")
                killed = int(_field(status, b"\nSigPnd:") or b"0", 16) & _KILLED
                if fields[0] not in (b"Z", b"X") and not int(fields[6]) & _PF_EXITING and not killed:
                    yield int(tid), fields[0].decode("ascii")

    def is_stopped(self) -> bool:
        """Whether its state is T, for those who ask several times a second. Raise as `stat` does."""
        # The main thread's, which is the process' as well: the process' own file sums up hundreds of threads.
        data = self.read_again(self._main_stat, _STATE_BYTES)
        return data[data.rindex(b")") + 2 :][:1] == b"T"

    def status(self) -> Status:
        """/proc/PID/status, read now."""
        return parse_status(self.read_again("status", _LIMIT_BYTES))

    def pauses(self) -> tuple[int, int | None]:
        """What `parse_pauses` gives, read now."""
        return parse_pauses(self.read_again("status", _LIMIT_BYTES))

    def children_of_main_thread(self) -> tuple[int, ...] | None:
        """As `children_of` without its threads; None where that needs more than one read. Raise as `read` does."""
        data = self.read_again(f"task/{self.pid}/children")
        return tuple(map(int, data.split())) if len(data) < _AGAIN_BYTES else None

    def close(self) -> None:
        """Close the directory and what was kept open below it; then every read raises OSError."""
        held = (*self._kept.values(), *((self.descriptor,) if self.descriptor >= 0 else ()))
        self._kept.clear()
        self.descriptor = -1  # its number is soon another file's
        for descriptor in held:
            os.close(descriptor)

    def __enter__(self) -> "ProcessDirectory":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def stat_of(pid: int, proc: str = "/proc") -> Stat:
    """Of whichever process has this number now. Raise OSError or ValueError."""
    with open(f"{proc}/{pid}/stat", "rb") as file:
        return parse_stat(file.read())


def status_of(pid: int, proc: str = "/proc") -> Status:
    """Of whichever process has this number now. Raise OSError or ValueError."""
    with open(f"{proc}/{pid}/status", "rb") as file:
        return parse_status(file.read())


def namespace_of(pid: int | str, kind: str, proc: str = "/proc") -> int | None:
    """The inode of its namespace ("net", "pid"), by which two can be told apart; None where it is not ours to know.
    `pid` may be "self"."""
    try:
        return os.stat(f"{proc}/{pid}/ns/{kind}").st_ino
    except OSError:
        return None


def children_of(pid: int, proc: str = "/proc", threads: bool = True) -> tuple[int, ...]:
    """Pids of a process' children, those of its main thread only when `threads` is false. Empty when it is gone or
    the kernel was built without CONFIG_PROC_CHILDREN."""
    try:
        tids = os.listdir(f"{proc}/{pid}/task") if threads else [str(pid)]
    except OSError:
        return ()
    found: list[int] = []
    parts: list[bytes] = []
    for tid in tids:
        try:
            # Without objects for path and file: a rank has hundreds of threads.
            descriptor = os.open(f"{proc}/{pid}/task/{tid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            while part := os.read(descriptor, _LIMIT_BYTES):
                parts.append(part)
            found += map(int, b"".join(parts).split())
        except OSError:
            continue
        finally:
            os.close(descriptor)
            parts.clear()
    return tuple(sorted(found))


# Of one process, by all who look: a rank with more is shown with the first ones. Loaders have tens, compilers 32.
MOST_DESCENDANTS = 128


def descendants(
    pid: int, proc: str = "/proc", more: Iterable[int] = (), *, threads: bool = True, own: Iterable[int] | None = None
) -> Iterator[tuple[int, Stat]]:
    """Processes that a process has started, and those that these have, nearest first; `more` of its own may be known,
    `threads` is as in `children_of`, and `own` what that says of it. Whose pid was used again, or who was given to
    another parent, is none."""
    waiting = list(dict.fromkeys((*(children_of(pid, proc, threads) if own is None else own), *more)))
    seen = {pid}
    while waiting:
        child = waiting.pop(0)
        if child in seen:
            continue
        seen.add(child)
        try:
            stat = stat_of(child, proc)
        except (OSError, ValueError):
            continue
        if stat.parent_pid in seen:
            yield child, stat
            waiting += children_of(child, proc, threads)
