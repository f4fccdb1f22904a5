"""Reads that wait for a process' memory lock: command line, environment, maps. A process that hangs on a dead file
system can hold it for ever ("ps hangs"), so they have a thread to themselves, and records and states go on without."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Container
from typing import NamedTuple

from stallwatch.formats.outside_text import name_of
from stallwatch.node.procfs import ProcessDirectory
from stallwatch.node.secrets import scrub_argv
from stallwatch.sensors.environ import parse_environment
from stallwatch.sensors.hookless import FoundRank, HooklessSearch

_COMMAND_CHARACTERS = 300
_ENVIRONMENT_LIMIT_BYTES = 1 << 20
_LATE_SECONDS = 30.0


class SlowFacts(NamedTuple):
    command: str  # without secrets
    environment: dict[str, str]  # the names that tell a rank


class SlowReads:
    """One thread; results are fetched, never waited for."""

    def __init__(self, proc: str, search_seconds: float, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._proc = proc
        self._search_seconds = search_seconds
        self._now_ns = monotonic_ns
        self._search = HooklessSearch(proc)
        self._wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._facts: dict[tuple[int, int], SlowFacts] = {}
        self._found: tuple[FoundRank, ...] = ()
        self._busy_since_ns: int | None = None
        self.known_pids: frozenset[int] = frozenset()  # set by the reader of ranks, read by the search
        threading.Thread(target=self._run, daemon=True).start()

    def want(self, pid: int, start_ticks: int) -> None:
        """Ask for the facts of a process."""
        self._wanted.put((pid, start_ticks))

    def take(self, pid: int, start_ticks: int) -> SlowFacts | None:
        """Return what was asked for, once; None while it is not there."""
        return self._facts.pop((pid, start_ticks), None)

    def keep(self, wanted: Container[tuple[int, int]]) -> None:
        """Forget what came of processes that nobody follows any more."""
        for key in [key for key in list(self._facts) if key not in wanted]:
            self._facts.pop(key, None)

    def found(self) -> tuple[FoundRank, ...]:
        """Ranks without a hook, as of the last search."""
        return self._found

    def problem(self) -> str:
        """A sentence when a read has not come back; "" otherwise."""
        since_ns = self._busy_since_ns
        seconds = 0.0 if since_ns is None else (self._now_ns() - since_ns) / 1e9
        if seconds < _LATE_SECONDS:
            return ""
        return f"a process' memory cannot be read for {seconds:.0f} s: no command lines, no ranks without a hook"

    def _run(self) -> None:
        next_search_ns = 0
        while True:
            left = max(0.0, (next_search_ns - self._now_ns()) / 1e9)
            try:
                pid, start_ticks = self._wanted.get(timeout=min(left, self._search_seconds) or 0.001)
            except queue.Empty:
                self._busy_since_ns = self._now_ns()
                next_search_ns = self._busy_since_ns + int(self._search_seconds * 1e9)
                # This thread serves all ranks: what one process does to it must not end it.
                with contextlib.suppress(Exception):
                    self._found = tuple(self._search.search(self.known_pids))
            else:
                self._busy_since_ns = self._now_ns()
                self._facts[pid, start_ticks] = read_facts(pid, start_ticks, self._proc)
            self._busy_since_ns = None


def read_facts(pid: int, start_ticks: int, proc: str = "/proc") -> SlowFacts:
    """Return what can be read of a process; what is not ours to read is empty."""
    command, environment = "", {}
    try:
        with ProcessDirectory(pid, proc) as directory:
            if directory.stat().start_ticks == start_ticks:
                argv = [name_of(word) for word in directory.read("cmdline").split(b"\0") if word]
                command = scrub_argv(argv)[:_COMMAND_CHARACTERS]
                environment = parse_environment(directory.read("environ", _ENVIRONMENT_LIMIT_BYTES))
    except (OSError, ValueError):
        pass  # it ended, or is another user's
    return SlowFacts(command, environment)
