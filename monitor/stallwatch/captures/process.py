"""A rank's process in detail: every thread, every child, or how it ended."""

import contextlib
import os
import time

from stallwatch.model.evidence import ChildProcess, ProcessLook, ThreadState
from stallwatch.model.snapshot import RankSample
from stallwatch.node.procfs import ProcessDirectory, children_of, parse_io, parse_stat, parse_wchan

_MOST_THREADS = 4096
_MOST_CHILDREN = 128


def look_at(pid: int, start_ticks: int, look: int, proc: str = "/proc") -> ProcessLook:
    """Raise ProcessLookupError when the process is gone or its pid belongs to another one by now."""
    with ProcessDirectory(pid, proc) as directory:
        stat = directory.stat()
        if stat.start_ticks != start_ticks:
            raise ProcessLookupError(f"pid {pid} belongs to another process now")
        counts: tuple[int, int] | tuple[None, None] = (None, None)
        with contextlib.suppress(PermissionError, ValueError):
            counts = parse_io(directory.read("io"))
        threads = tuple(_threads(directory))
        return ProcessLook(
            source=f"/proc/{pid}",
            look=look,
            pid=pid,
            state=stat.state,
            exit_code=None,
            exit_signal=None,
            wchan=next((thread.wchan for thread in threads if thread.tid == pid), None),
            cpu_ticks=stat.cpu_ticks,
            threads=threads,
            children=tuple(_descendants(pid, proc)),
            tracer_pid=directory.status().tracer_pid,
            read_bytes=counts[0],
            write_bytes=counts[1],
            at_ns=time.monotonic_ns(),
        )


def ended(sample: RankSample, look: int) -> ProcessLook:
    """The look at a process that is gone: how it ended, as far as anybody could tell, and when."""
    end = sample.end
    return ProcessLook(
        source=f"/proc/{sample.pid}",
        look=look,
        pid=sample.pid,
        state="X",
        exit_code=end.exit_code if end else None,
        exit_signal=end.exit_signal if end else None,
        wchan=None,
        cpu_ticks=None,
        threads=(),
        exit_source=end.source if end else "unknown",
        out_of_memory=end.out_of_memory if end else None,
        at_ns=time.monotonic_ns(),
        ended_ns=end.at_ns if end else time.monotonic_ns(),
    )


def is_python(pid: int, proc: str = "/proc") -> bool:
    """Whether a child is an interpreter, by its executable; compilers and shells have no Python stack."""
    try:
        return os.path.basename(os.readlink(f"{proc}/{pid}/exe")).startswith(("python", "pypy"))
    except OSError:
        return False


def _threads(directory: ProcessDirectory) -> list[ThreadState]:
    threads = []
    for tid in sorted(map(int, directory.names("task")))[:_MOST_THREADS]:
        try:
            stat = parse_stat(directory.read(f"task/{tid}/stat"))
            wchan = parse_wchan(directory.read(f"task/{tid}/wchan"))
        except ProcessLookupError:
            continue  # this thread ended meanwhile
        except PermissionError:
            wchan = None
        threads.append(ThreadState(tid, stat.command, stat.state, stat.cpu_ticks, wchan))
    return threads


def _wchan(pid: int, proc: str) -> str | None:
    try:
        with open(f"{proc}/{pid}/wchan", "rb") as file:
            return parse_wchan(file.read())
    except OSError:
        return None


def _descendants(pid: int, proc: str) -> list[ChildProcess]:
    found: list[ChildProcess] = []
    waiting = list(children_of(pid, proc))
    seen = {pid}
    while waiting and len(found) < _MOST_CHILDREN:
        child = waiting.pop(0)
        if child in seen:
            continue
        seen.add(child)
        try:
            with open(f"{proc}/{child}/stat", "rb") as file:
                stat = parse_stat(file.read())
        except (OSError, ValueError):
            continue
        found.append(ChildProcess(child, stat.state, stat.command, stat.cpu_ticks, _wchan(child, proc)))
        waiting += children_of(child, proc)
    return found
