"""The verdict, obtained as anybody obtains it: `stallwatch analyze --json BUNDLE`, in a child that may be lost."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch.clock import Clock
from stallwatch.config import DiagnosisSection
from stallwatch.errors import EXIT_OK, EXIT_SLOW_OR_WAITING, EXIT_UNDECIDED, EXIT_VERDICT
from stallwatch.model.verdict import Report
from stallwatch.node.memory_file import memory_file

_REPORT = msgspec.json.Decoder(Report)

_HAS_REPORT = (EXIT_OK, EXIT_VERDICT, EXIT_UNDECIDED, EXIT_SLOW_OR_WAITING)
_MAXIMUM_OUTPUT_BYTES = 64 << 20
# Reads the bundle's path from its standard input: it can be started before there is anything to judge.
_COMMAND = (sys.executable, "-m", "stallwatch.cli.warm")


class JudgeState(msgspec.Struct, frozen=True):
    report: Report | None
    problem: str = ""


class JudgeRun:
    """Its child starts at construction and imports; `begin` gives it the bundle. Raise OSError when none can start."""

    def __init__(self, limits: DiagnosisSection, clock: Clock, command: Sequence[str] = _COMMAND) -> None:
        self._clock = clock
        self._seconds = limits.seconds
        self._deadline_ns: int | None = None
        # Files, not pipes: a child that prints much must not wait for a loop that polls.
        self._output, self._errors = memory_file(), memory_file()
        self._child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )
        # After the start, since preexec_fn is unsafe with threads; nothing big is allocated in the first milliseconds.
        bound = (limits.memory_bytes, limits.memory_bytes)
        with contextlib.suppress(ProcessLookupError):  # ended already: its exit code will tell
            resource.prlimit(self._child.pid, resource.RLIMIT_AS, bound)

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def begin(self, bundle: Path) -> None:
        """Have this bundle judged; the deadline counts from here."""
        self._deadline_ns = self._clock.monotonic_ns() + int(self._seconds * 1e9)
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ended already: its exit code will tell
            self._child.stdin.write(os.fsencode(bundle) + b"\n")
            self._child.stdin.close()

    def poll(self) -> JudgeState | None:
        """Return the outcome, None while there is none; a child past its deadline is ended."""
        code = self._child.poll()
        if code is None:
            if self._deadline_ns is None or self._clock.monotonic_ns() < self._deadline_ns:
                return None
            self.cancel()
            return JudgeState(None, f"no verdict within {self._seconds:.0f} s (diagnosis.seconds)")
        try:
            return self._read(code)
        finally:
            self._close()

    def cancel(self) -> None:
        """End the child and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
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
            return JudgeState(_REPORT.decode(self._output.read(_MAXIMUM_OUTPUT_BYTES)))
        except msgspec.MsgspecError as error:
            return JudgeState(None, f"analyze printed no report: {error}")

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - 2000, 0))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"

    def _close(self) -> None:
        for file in (self._child.stdin, self._output, self._errors):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()
