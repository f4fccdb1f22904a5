"""The verdict, obtained as anybody obtains it: `stallwatch analyze --json BUNDLE`, in a child that may be lost."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch.clock import Clock
from stallwatch.config_sections import DiagnosisSection, FleetSection
from stallwatch.errors import EXIT_OK, EXIT_SLOW_OR_WAITING, EXIT_UNDECIDED, EXIT_VERDICT
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.verdict import Report
from stallwatch.node.run_once import Ended, RunOnce

_REPORT = msgspec.json.Decoder(Report)

_HAS_REPORT = (EXIT_OK, EXIT_VERDICT, EXIT_UNDECIDED, EXIT_SLOW_OR_WAITING)
_MAXIMUM_OUTPUT_BYTES = 64 << 20
# Reads the bundle's path from its standard input: it can be started before there is anything to judge.
_COMMAND = (sys.executable, "-m", "stallwatch.cli.spare_judge")


class JudgeState(msgspec.Struct, frozen=True):
    """The verdict, or why there is none."""

    report: Report | None
    problem: str = ""
    summary: bytes = b""  # for other nodes, where it was asked for: diagnosis.node_summary as msgpack


def command_for(fleet: FleetSection) -> tuple[str, ...]:
    """The command that judges: with a summary where there are other nodes to read it."""
    return (*_COMMAND, "--summary", fleet.detail) if fleet.url else _COMMAND


class JudgeRun:
    """Its child starts at construction and imports; `begin` gives it the bundle. Raise OSError when none can start."""

    def __init__(self, limits: DiagnosisSection, clock: Clock, command: Sequence[str] = _COMMAND) -> None:
        self._clock = clock
        self._seconds = limits.seconds
        self._deadline_ns: int | None = None
        self._is_expecting = False
        self._run = RunOnce(command, None, memory_bytes=limits.memory_bytes, limit_bytes=_MAXIMUM_OUTPUT_BYTES)

    @property
    def alive(self) -> bool:
        """Whether the child still runs: a warm one may have been killed meanwhile."""
        return self._run.alive

    def expect(self) -> None:
        """There will be a bundle soon: have started what it needs."""
        if not self._is_expecting:
            self._is_expecting = True
            self._run.give(b"\n", whole=False)

    def begin(self, bundle: Path) -> None:
        """Have this bundle judged; the deadline counts from here."""
        self._deadline_ns = self._clock.monotonic_ns() + int(self._seconds * 1e9)
        self._run.give(os.fsencode(bundle) + b"\n")

    def poll(self) -> JudgeState | None:
        """Return the outcome, None while there is none; a child past its deadline is ended."""
        ended = self._run.poll()
        if ended is not None:
            return _state_of(ended)
        if self._deadline_ns is None or self._clock.monotonic_ns() < self._deadline_ns:
            return None
        self.cancel()
        return JudgeState(None, f"no verdict within {self._seconds:.0f} s (diagnosis.seconds)")

    def cancel(self) -> None:
        """End the child and what it started."""
        self._run.end()

    def wait(self, seconds: float) -> None:
        """Return when the child has ended, or the time is over: for who has nothing else to do."""
        self._run.wait(seconds)


def _state_of(ended: Ended) -> JudgeState:
    if ended.code not in _HAS_REPORT:
        return JudgeState(None, f"analyze ended with {ended.code}: {ended.last_words or 'without a word'}")
    report, _, summary = ended.output.partition(b"\n")  # JSON holds no bare line end
    try:
        return JudgeState(_REPORT.decode(report), summary=summary)
    except NOT_JSON as error:
        return JudgeState(None, f"analyze printed no report: {error}")
