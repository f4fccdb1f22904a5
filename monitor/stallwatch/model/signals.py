"""What a signal tells of an end: whether the process did it itself, or who ends jobs did it."""

import signal
from typing import Final

# A crash in native code, an assertion, torch's watchdog (SIGABRT), a reader that is gone (SIGPIPE), a sandbox (SIGSYS).
OWN_FAULTS: Final = frozenset[int]((
    signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGPIPE,
    signal.SIGSYS,
))  # fmt: skip
# How people, schedulers and torchrun end a job.
ENDING: Final = frozenset[int]((signal.SIGHUP, signal.SIGINT, signal.SIGTERM))


def signal_name(number: int) -> str | None:
    """ "SIGKILL"; None where the platform has no name for it: it is a real-time one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def named_signal(number: int) -> str:
    """A signal as a sentence names it: "SIGKILL", or "signal 40" where it has no name."""
    return signal_name(number) or f"signal {number}"
