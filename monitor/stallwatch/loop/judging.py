"""The verdict, obtained as anybody obtains it: `stallwatch analyze --json BUNDLE`, in a child that may be lost."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch.clock import Clock
from stallwatch.config import DiagnosisSection
from stallwatch.errors import EXIT_OK, EXIT_SLOW_OR_WAITING, EXIT_UNDECIDED, EXIT_VERDICT
from stallwatch.model.verdict import Report

_HAS_REPORT = (EXIT_OK, EXIT_VERDICT, EXIT_UNDECIDED, EXIT_SLOW_OR_WAITING)
_MAXIMUM_OUTPUT_BYTES = 64 << 20


class JudgeState(msgspec.Struct, frozen=True):
    report: Report | None
    problem: str = ""


class JudgeRun:
    """Starts at construction. Raise OSError when no process can be started."""

    def __init__(
        self, bundle: Path, limits: DiagnosisSection, clock: Clock, command: Sequence[str] | None = None
    ) -> None:
        self._clock = clock
        self._seconds = limits.seconds
        self._deadline_ns = clock.monotonic_ns() + int(limits.seconds * 1e9)
        # Files, not pipes: a child that prints much must not wait for a loop that polls.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the child is
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        arguments = list(command) if command else [sys.executable, "-m", "stallwatch.cli", "analyze", "--json"]
        self._child = subprocess.Popen(
            [*arguments, str(bundle)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )
        # After the start, since preexec_fn is unsafe with threads; nothing big is allocated in the first milliseconds.
        bound = (limits.memory_bytes, limits.memory_bytes)
        try:
            resource.prlimit(self._child.pid, resource.RLIMIT_AS, bound)
        except ProcessLookupError:
            pass  # ended already; its exit code will tell

    def poll(self) -> JudgeState | None:
        """Return the outcome, None while there is none; a child past its deadline is ended."""
        code = self._child.poll()
        if code is None:
            if self._clock.monotonic_ns() < self._deadline_ns:
                return None
            self.cancel()
            return JudgeState(None, f"no verdict within {self._seconds:.0f} s (diagnosis.seconds)")
        try:
            return self._read(code)
        finally:
            self._close()

    def cancel(self) -> None:
        """End the child and what it started."""
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.wait(1)  # one in the kernel's hands is left to it
        self._close()

    def wait(self, seconds: float) -> int | None:
        """Wait for the child, for who has nothing else to do; return its exit code, None when it still runs."""
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _read(self, code: int) -> JudgeState:
        if code not in _HAS_REPORT:
            return JudgeState(None, f"analyze ended with {code}: {self._last_words()}")
        self._output.seek(0)
        try:
            return JudgeState(msgspec.json.decode(self._output.read(_MAXIMUM_OUTPUT_BYTES), type=Report))
        except msgspec.MsgspecError as error:
            return JudgeState(None, f"analyze printed no report: {error}")

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - 2000, 0))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"

    def _close(self) -> None:
        self._output.close()
        self._errors.close()
