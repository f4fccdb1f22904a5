"""A rank's process in detail: every thread, every child, or how it ended."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from stallwatch.captures.awaited_child import awaited_child
from stallwatch.captures.file_locks import holder_of
from stallwatch.captures.system_call import futex_is_endless
from stallwatch.captures.waited_for import waited_for
from stallwatch.hook import layout
from stallwatch.model.evidence import ChildProcess, ProcessLook, ThreadState
from stallwatch.model.snapshot import RankSample
from stallwatch.node.procfs import (
    MOST_DESCENDANTS,
    ProcessDirectory,
    descendants,
    parse_io,
    parse_stat,
    parse_status,
    parse_wchan,
    status_of,
)

_MOST_THREADS = 4096
_AT_LOCK = "lock"  # in the names of the kernel's functions that wait for one on a file: locks_lock_inode_wait
_AT_CHILD = "do_wait"  # that waits for a child, or for a futex
_AT_FUTEX = "futex"
_WAKES_OF_A_PAUSE = 2  # measured: the stop ends the wait, and it is waited again

# The hook publishes its record whole.
_HOOK_BYTES_PER_SECOND = layout.RECORD_BYTES * 1_000_000_000 / layout.PUBLISH_NS


# A tool that attaches (another monitor, a profiler) holds a process for milliseconds, on a crowded node for some
# hundreds: seen at such a moment, a healthy rank was told as held by a debugger.
_PASSING_SECONDS, _AGAIN_SECONDS = 1.0, 0.05


class OwnBytes(NamedTuple):
    """What a process read and wrote for us, so far: no work of its own, however much of it there is."""

    read: int = 0
    written: int = 0


NOTHING_YET = OwnBytes()


def look_at(
    pid: int,
    start_ticks: int,
    look: int,
    proc: str = "/proc",
    pause: Callable[[float], None] = time.sleep,
) -> ProcessLook:
    """Look once whoever holds it for a moment has let go; `pause` waits for so many seconds. Raise ProcessLookupError
    when the process is gone or its pid belongs to another one by now."""
    with ProcessDirectory(pid, proc) as directory:
        stat = directory.stat()
        for _ in range(round(_PASSING_SECONDS / _AGAIN_SECONDS)):
            if stat.state != "t":
                break
            pause(_AGAIN_SECONDS)
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
            lock_holder_pid=holder_of(pid, proc) if any(_AT_LOCK in (one.wchan or "") for one in threads) else None,
        )


def own_bytes_since(before: OwnBytes, at_ns: int | None, has_hook: bool, now_ns: int) -> OwnBytes:
    """Given what was ours at an earlier look, at `at_ns`, return what was until now: that, and our hook's records
    since."""
    seconds = max(0, now_ns - at_ns) / 1e9 if at_ns is not None and has_hook else 0.0
    return OwnBytes(before.read, before.written + int(seconds * _HOOK_BYTES_PER_SECOND))


def without(look: ProcessLook, own: OwnBytes) -> ProcessLook:
    """Given a look, and what was ours of all that its process had read and written by then, return it with the rest."""
    return replace(
        look,
        read_bytes=None if look.read_bytes is None else look.read_bytes - own.read,
        write_bytes=None if look.write_bytes is None else look.write_bytes - own.written,
        own_read_bytes=own.read,
        own_write_bytes=own.written,
    )


def of_unknown_bytes(look: ProcessLook) -> ProcessLook:
    """Given a look of whose process' bytes nobody told how many were ours, return it without them: our hook writes
    32 KB a second, which passed for its rank's work on a crowded node, where that word came late."""
    return replace(look, read_bytes=None, write_bytes=None)


def with_answers(look: ProcessLook, pid: int, proc: str = "/proc") -> ProcessLook:
    """Given a look, return it with what the process has read and written since counted as ours: it answered us.
    Raise as `look_at` does."""
    with ProcessDirectory(pid, proc) as directory, contextlib.suppress(PermissionError, ValueError):
        read, written = parse_io(directory.read("io"))
        if look.read_bytes is not None and look.write_bytes is not None:
            return replace(
                look,
                own_read_bytes=max(look.own_read_bytes, read - look.read_bytes),
                own_write_bytes=max(look.own_write_bytes, written - look.write_bytes),
            )
    return look


def wakes_of(look: ProcessLook, proc: str = "/proc") -> dict[int, int]:
    """Return how often each thread of a look has gone to sleep of its own will, so far, by tid; without those of which
    nothing tells, or that have ended. Raise as `look_at` does."""
    with ProcessDirectory(look.pid or 0, proc) as directory:
        now = {thread.tid: _wakes(directory, thread.tid) for thread in look.threads}
    return {tid: count for tid, count in now.items() if count is not None}


def with_own_wakes(look: ProcessLook, before: dict[int, int], after: dict[int, int]) -> ProcessLook:
    """Given the counts before and after we paused a process, return the look with what they differ by counted as ours,
    as far as a pause does that: it ends a wait as well."""
    own = {tid: min(count - before[tid], _WAKES_OF_A_PAUSE) for tid, count in after.items() if tid in before}
    return replace(look, threads=tuple(replace(t, own_wakes=t.own_wakes + own.get(t.tid, 0)) for t in look.threads))


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
        ended_ns=end.at_ns if end else None,  # by when it was gone is not when it went: that orders deaths
    )


def of_same_user(pid: int, children: Iterable[ChildProcess], proc: str = "/proc") -> tuple[ChildProcess, ...]:
    """Given a process and its children, return those that run as its user: whatever it has had started as another one
    (sudo, a setuid program) is not looked into on its word."""
    own = _users_of(pid, proc)
    return tuple(child for child in children if (users := _users_of(child.pid, proc)) and users <= own)


def _users_of(pid: int, proc: str) -> set[int]:
    """None of one that cannot be read."""
    try:
        with ProcessDirectory(pid, proc) as directory:
            return set(directory.status().uids)
    except (OSError, ValueError):
        return set()


def is_python(pid: int, proc: str = "/proc") -> bool:
    """Whether a child is an interpreter, by its executable; compilers and shells have no Python stack."""
    try:
        return os.path.basename(os.readlink(f"{proc}/{pid}/exe")).startswith(("python", "pypy"))
    except OSError:
        return False


def _threads(directory: ProcessDirectory) -> list[ThreadState]:
    threads = []
    has_namespace = len(directory.status().namespace_pids) > 1
    for tid in sorted(map(int, directory.names("task")))[:_MOST_THREADS]:
        try:
            stat = parse_stat(directory.read(f"task/{tid}/stat"))
            wchan = parse_wchan(directory.read(f"task/{tid}/wchan"))
            inner = parse_status(directory.read(f"task/{tid}/status")).namespace_pids if has_namespace else ()
        except ProcessLookupError:
            continue  # this thread ended meanwhile
        except PermissionError:
            wchan, inner = None, ()
        own = inner[-1] if len(inner) > 1 else None
        on = waited_for(directory, tid) if stat.state == "D" or (stat.state == "S" and tid == directory.pid) else ""
        thread = ThreadState(tid, stat.command, stat.state, stat.cpu_ticks, wchan, own, waits_on=on)
        child = awaited_child(directory, tid) if wchan and _AT_CHILD in wchan else None
        endless = futex_is_endless(directory, tid) if wchan and _AT_FUTEX in wchan else None
        wakes, moved = _wakes(directory, tid), _moved_bytes(directory, tid)
        threads.append(replace(thread, wakes=wakes, moved_bytes=moved, awaited_child=child, endless=endless))
    return threads


def _moved_bytes(directory: ProcessDirectory, tid: int) -> int | None:
    """None where nothing tells."""
    try:
        return sum(parse_io(directory.read(f"task/{tid}/io")))
    except (OSError, ValueError):
        return None


def _wakes(directory: ProcessDirectory, tid: int) -> int | None:
    """Voluntary context switches (proc_pid_status(5)); None where nothing tells."""
    try:
        _, _, rest = directory.read(f"task/{tid}/status").partition(b"\nvoluntary_ctxt_switches:")
        return int(rest.split(b"\n", 1)[0])
    except (OSError, ValueError):
        return None


def _wchan(pid: int, proc: str) -> str | None:
    try:
        with open(f"{proc}/{pid}/wchan", "rb") as file:
            return parse_wchan(file.read())
    except OSError:
        return None


def _bytes_of(pid: int, proc: str) -> int | None:
    """Of a whole process, and of what it has run to its end; None where nothing tells."""
    try:
        with open(f"{proc}/{pid}/io", "rb") as file:
            return sum(parse_io(file.read()))
    except (OSError, ValueError):
        return None


def _namespace_pid(pid: int, proc: str) -> int | None:
    try:
        pids = status_of(pid, proc).namespace_pids
    except (OSError, ValueError):
        return None
    return pids[-1] if len(pids) > 1 else None


def _descendants(pid: int, proc: str) -> Iterator[ChildProcess]:
    for child, stat in islice(descendants(pid, proc), MOST_DESCENDANTS):
        wchan, own = _wchan(child, proc), _namespace_pid(child, proc)
        on = _waited_for(child, proc, _users_of(pid, proc)) if stat.state == "D" else ""
        yield ChildProcess(
            child,
            stat.state,
            stat.command,
            stat.cpu_ticks,
            wchan,
            own,
            on,
            stat.parent_pid,
            stat.reaped_ticks,
            _bytes_of(child, proc),
        )


def _waited_for(pid: int, proc: str, users: set[int]) -> str:
    """What a child waits for; "" of one that runs as another user, into whose memory nobody looks for this one."""
    try:
        with ProcessDirectory(pid, proc) as directory:
            return waited_for(directory, pid) if set(directory.status().uids) <= users else ""
    except (OSError, ValueError):
        return ""
