"""One sample of a moving job, taken by a child process that the daemon is willing to lose."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from stallwatch.captures.sample_spec import SampleResult, SampleSpec
from stallwatch.clock import Clock
from stallwatch.diagnosis.drifted import Memory
from stallwatch.node.children import Start, start_here
from stallwatch.node.memory_file import memory_file

_RESULT = msgspec.json.Decoder(SampleResult)
_COMMAND = (sys.executable, "-P", "-m", "stallwatch.captures.sample_child")
_MAXIMUM_RESULT_BYTES = 16 << 20


class SampleRun:
    """Starts at construction. Raise OSError when no process can be started."""

    def __init__(
        self,
        spec: SampleSpec,
        seconds: float,
        clock: Clock,
        command: Sequence[str] = _COMMAND,
        start: Start = start_here,
    ) -> None:
        """Take the sample that `spec` describes; the child, which `start` starts, is ended after `seconds`."""
        self._before: Memory = spec.before
        self._clock = clock
        self._seconds = seconds
        self._deadline_ns = clock.monotonic_ns() + int(seconds * 1e9)
        # A file, not a pipe: a child that prints much must not wait for a loop that polls.
        self._output = memory_file()
        with memory_file(msgspec.json.encode(spec)) as file:
            self._child = start(command, file.fileno(), self._output.fileno())

    def poll(self) -> SampleResult | None:
        """Return the result, None while there is none; a child past its deadline is ended."""
        code = self._child.poll()
        if code is None:
            if self._clock.monotonic_ns() < self._deadline_ns:
                return None
            self.cancel()
            return SampleResult(0, (), self._before, f"no sample within {self._seconds:.0f} s (drift.seconds)")
        try:
            self._output.seek(0)
            return _RESULT.decode(self._output.read(_MAXIMUM_RESULT_BYTES))
        except msgspec.MsgspecError:
            return SampleResult(0, (), self._before, f"the sample's process failed (exit code {code})")
        finally:
            self._output.close()

    def cancel(self) -> None:
        """End the child; what it asked of ranks is answered into nowhere."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(1)  # one in the kernel's hands is left to it
        self._output.close()
