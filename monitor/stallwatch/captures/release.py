"""Makes sure that no rank stays stopped after py-spy was there: `python -m stallwatch.captures.release PID:TICKS …`."""

import os
import signal
import sys
import time

from stallwatch.node.procfs import ProcessDirectory

_SIGSTOP_PENDING = 1 << (signal.SIGSTOP - 1)
# A tracer that was killed detaches in the kernel; its stop is then still on the way to the process.
_LOOKS = 3
_BETWEEN_SECONDS = 0.025


def release(pid: int, start_ticks: int) -> bool:
    """Given a process that was not stopped before we paused it, send SIGCONT if it is stopped now without a tracer, or
    if a stop is pending for one of its threads (SIGCONT takes that back). Return whether it was sent.

    Never call it for a process that was stopped before: somebody else holds that one.
    """
    sent = False
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN_SECONDS)
        try:
            with ProcessDirectory(pid) as directory:
                if directory.stat().start_ticks != start_ticks:
                    return sent
                if _held(directory):
                    descriptor = os.pidfd_open(pid)
                    try:
                        if directory.stat().start_ticks == start_ticks:
                            signal.pidfd_send_signal(descriptor, signal.SIGCONT)
                            sent = True
                    finally:
                        os.close(descriptor)
        except (ProcessLookupError, PermissionError):
            return sent
    return sent


def _held(directory: ProcessDirectory) -> bool:
    status = directory.status()
    if status.tracer_pid:
        return False
    if directory.stat().state == "T":
        return True
    for tid in directory.names("task"):
        try:
            pending = directory.read(f"task/{tid}/status")
        except ProcessLookupError:
            continue
        for line in pending.splitlines():
            if line.startswith((b"SigPnd:", b"ShdPnd:")) and int(line.split()[1], 16) & _SIGSTOP_PENDING:
                return True
    return False


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        pid_text, _, ticks_text = argument.partition(":")
        release(int(pid_text), int(ticks_text))
