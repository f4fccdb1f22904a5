"""Lets a rank go on that a py-spy of ours left stopped, and no other: who was stopped by somebody else stays so.

What the kernel lets tell apart. PTRACE_ATTACH sends a SIGSTOP to one thread (SigPnd); kill(2) sends it to the process
(ShdPnd), where it waits while every thread is traced, and behind a stop. A tracer that ends by itself takes its SIGSTOP
back. One that is killed leaves it to be delivered where it had not waited for that thread's stop yet (a thread in the
kernel stops late), and nothing where it had. So a stop is ours when a tracer of ours was killed while it traced, and no
stop of another's was to be seen until it had let go.

`python -m stallwatch.captures.release GROUP PID:TICKS …`: of a capture that has ended in the middle of a look, its
process group, and the ranks that it had paused."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from stallwatch.node.procfs import ProcessDirectory

_SIGSTOP_PENDING = 1 << (signal.SIGSTOP - 1)
_LOOKS = 3  # after a tracer's end: its stop may still be on the way to a thread
_BETWEEN_SECONDS = 0.025
_DETACH_SECONDS = 1.0
_BETWEEN_DETACHING_SECONDS = 0.0005


def end_pause(pid: int, start_ticks: int, tracer: int, kill: Callable[[], None]) -> bool:
    """Given a process that was not stopped before the process `tracer` went to pause it, call `kill`, which sends the
    tracer SIGKILL, and send SIGCONT if the process stays stopped by it. Return whether it was sent."""
    killed = False
    try:
        with ProcessDirectory(pid) as directory:
            threads = list(_threads(directory))
            ours = directory.stat().start_ticks == start_ticks and any(
                thread.tracer == tracer or thread.own_stop for thread in threads
            )
            others = any(thread.shared_stop or (thread.state == "T" and not thread.tracer) for thread in threads)
            killed = True
            kill()
            deadline = time.monotonic() + _DETACH_SECONDS
            while any(thread.tracer == tracer for thread in threads) and time.monotonic() < deadline:
                threads = list(_threads(directory))
                others |= any(thread.shared_stop for thread in threads)
                time.sleep(_BETWEEN_DETACHING_SECONDS)
    except (ProcessLookupError, PermissionError):
        if not killed:
            kill()
        return False
    return ours and not others and let_go_on(pid, start_ticks)


def let_go_on(pid: int, start_ticks: int) -> bool:
    """Given a process whose tracer was killed while it traced, send SIGCONT if it is stopped now without a tracer, or
    if a stop is pending for one of its threads (SIGCONT takes that back); not when a stop of somebody else waits behind
    ours. Return whether it was sent."""
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_SECONDS)
        try:
            with ProcessDirectory(pid) as directory:
                if directory.stat().start_ticks != start_ticks:
                    return False
                threads = list(_threads(directory))
                if any(thread.tracer for thread in threads):
                    continue
                if any(thread.shared_stop for thread in threads):
                    return False
                if any(thread.own_stop or thread.state == "T" for thread in threads):
                    return _continue(directory, start_ticks)
        except (ProcessLookupError, PermissionError):
            return False
    return False


def _continue(directory: ProcessDirectory, start_ticks: int) -> bool:
    descriptor = os.pidfd_open(directory.pid)
    try:
        if directory.stat().start_ticks != start_ticks:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    finally:
        os.close(descriptor)
    return True


class _Thread:
    """What /proc/<pid>/task/<tid>/status tells of stops."""

    def __init__(self, status: bytes) -> None:
        values = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
        self.state = values[b"State"].split()[0].decode()
        self.tracer = int(values[b"TracerPid"])
        self.own_stop = bool(int(values[b"SigPnd"], 16) & _SIGSTOP_PENDING)
        self.shared_stop = bool(int(values[b"ShdPnd"], 16) & _SIGSTOP_PENDING)


def _threads(directory: ProcessDirectory) -> Iterator[_Thread]:
    for tid in directory.names("task"):
        try:
            yield _Thread(directory.read(f"task/{tid}/status"))
        except (ProcessLookupError, KeyError):
            continue  # it ended meanwhile


def _end_left(group: int, pid: int, start_ticks: int) -> None:
    """The tracer is known by its process group, which is ours until who led it is reaped."""
    tracer = 0
    with contextlib.suppress(ProcessLookupError, PermissionError), ProcessDirectory(pid) as directory:
        for thread in _threads(directory):
            with contextlib.suppress(ProcessLookupError):
                if thread.tracer and os.getpgid(thread.tracer) == group:
                    tracer = thread.tracer
    if not tracer:
        let_go_on(pid, start_ticks)  # ended already, with the capture
        return
    descriptor = os.pidfd_open(tracer)
    try:
        end_pause(pid, start_ticks, tracer, lambda: signal.pidfd_send_signal(descriptor, signal.SIGKILL))
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> None:
    """End the process group of a capture that was left, and let go on whom it held."""
    group, *held = arguments
    for one in held:
        pid, _, ticks = one.partition(":")
        with contextlib.suppress(OSError):
            _end_left(int(group), int(pid), int(ticks))


if __name__ == "__main__":
    main(sys.argv[1:])
