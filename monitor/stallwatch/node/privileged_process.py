"""A process that the privileged side has started, until it has ended and left no rank stopped. Standard library
only."""

import contextlib
import os
import signal
import struct

from stallwatch.node.children import Child, PopenChild, module_of_ours
from stallwatch.node.privileged_verbs import MOST_RANKS

_HELD = struct.Struct("<QQ")  # pid and start ticks of a rank that a py-spy pauses; zeros: none
HELD_BYTES = _HELD.size * MOST_RANKS


class PrivilegedProcess:
    """A child of the privileged side, with its deadline."""

    def __init__(self, name: str, process: Child, held: int, deadline: float | None) -> None:
        self.name = name
        self.process = process
        self.held = held  # a descriptor of its table of ranks that are paused; -1: it pauses none
        self.deadline = deadline
        self.told_to_end = False
        self.releasing: Child | None = None

    def end(self, force: bool) -> None:
        """Its own process alone: who is paused by what it started is let go on by `release`."""
        if self.process.returncode is None:  # not reaped: the pid is its own. Its own methods would reap it
            os.kill(self.process.pid, signal.SIGKILL if force else signal.SIGTERM)

    def has_ended(self) -> bool:
        """Whether it is gone and has left no rank stopped. It is reaped last: until then its process group is its
        own."""
        if self.process.returncode is None:
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            if self.releasing is None and (held := self._left_held()):
                command = module_of_ours("stallwatch.captures.release", str(self.process.pid), *held)
                # In a session of its own: who ends this side, with what is in its group, stops no rank for good.
                with contextlib.suppress(OSError), open(os.devnull, "rb") as nothing:
                    self.releasing = PopenChild(command, leads_session=True, stdin=nothing)
            if self.releasing is not None and self.releasing.poll() is None:
                return False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)  # its readers that hang
            self.process.wait()
        return True

    def _left_held(self) -> list[str]:
        if self.held < 0:
            return []
        data = os.pread(self.held, HELD_BYTES, 0)
        return [
            f"{pid}:{ticks}" for pid, ticks in _HELD.iter_unpack(data[: len(data) // _HELD.size * _HELD.size]) if pid
        ]

    def close(self) -> None:
        """Close what was held for it."""
        if self.held >= 0:
            os.close(self.held)
            self.held = -1
