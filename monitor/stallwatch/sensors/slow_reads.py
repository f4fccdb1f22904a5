"""Reads that wait for a process' memory lock: command line, environment, maps. A process that hangs on a dead file
system can hold it for ever ("ps hangs"), so they have a thread to themselves, and records and states go on without. One
that is held is left behind with the process that holds it, and another goes on with the others."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from stallwatch.formats.outside_text import name_of
from stallwatch.hook.secrets import scrubbed_argv
from stallwatch.node.procfs import ENVIRONMENT_LIMIT_BYTES, ProcessDirectory
from stallwatch.sensors.environ import parse_environment
from stallwatch.sensors.hookless import FoundRank, HooklessSearch, KnownRank
from stallwatch.sensors.sensor import LATE_SECONDS

_COMMAND_CHARACTERS = 300
_MOST_LEFT_BEHIND = 16
_CHILDREN_NS = 10_000_000_000  # as long as a search's word of who has which children holds


class SlowFacts(NamedTuple):
    """What is read of a process once, for it may take long."""

    command: str  # without secrets
    environment: dict[str, str]  # the names that tell a rank


class SlowReads:
    """One thread at a time; results are fetched, never waited for."""

    def __init__(self, proc: str, search_seconds: float, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._proc = proc
        self._search_seconds = search_seconds
        self._now_ns = monotonic_ns
        self._wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._facts: dict[tuple[int, int], SlowFacts] = {}
        self._found: tuple[FoundRank, ...] = ()
        self._beside: frozenset[tuple[int, int]] = frozenset()
        self._children: tuple[int, Mapping[int, tuple[int, ...]]] = (0, {})  # since when it is known, by pid
        self._busy_since_ns: int | None = None
        self._holding: set[int] = set()  # processes that hold a thread which was left behind
        self._reading = 0  # the process whose facts are read now; 0: the search has the turn
        self.known: Mapping[int, KnownRank] = {}  # by pid; set by the reader of ranks, read by the search
        self._start()

    def want(self, pid: int, start_ticks: int) -> None:
        """Ask for the facts of a process."""
        self._wanted.put((pid, start_ticks))

    def take(self, pid: int, start_ticks: int) -> SlowFacts | None:
        """Return what was asked for, once; None while it is not there."""
        return self._facts.pop((pid, start_ticks), None)

    def keep(self, wanted: Container[tuple[int, int]]) -> None:
        """Forget what came of processes that nobody follows any more, and go on without one that does not answer."""
        self._leave_behind()
        for key in [key for key in list(self._facts) if key not in wanted]:
            self._facts.pop(key, None)

    def found(self) -> tuple[FoundRank, ...]:
        """Ranks without a hook, as of the last search."""
        return self._found

    def beside(self) -> frozenset[tuple[int, int]]:
        """Those that are known and turned out to be no rank, as of the last search."""
        return self._beside

    def children_of(self, pid: int) -> tuple[int, ...] | None:
        """Return the children of a process that was `known` to the last search, which sees them on its way; None where
        it does not tell, since it is long ago, or has left processes out."""
        since_ns, children = self._children
        return None if self._holding or self._now_ns() - since_ns > _CHILDREN_NS else children.get(pid)

    def problem(self) -> str:
        """A sentence when a read has not come back; "" otherwise."""
        held = ", ".join(map(str, sorted(self._holding)[:3])) + (", …" if len(self._holding) > 3 else "")
        sentence = f"the memory of process {held} cannot be read, which is left out" if held else ""
        seconds = self._busy_seconds()
        if seconds < LATE_SECONDS:
            return sentence
        return f"a process' memory cannot be read for {seconds:.0f} s: no command lines, no ranks without a hook"

    def _busy_seconds(self) -> float:
        since_ns = self._busy_since_ns
        return 0.0 if since_ns is None else (self._now_ns() - since_ns) / 1e9

    def _leave_behind(self) -> None:
        self._holding -= {pid for pid in self._holding if not os.path.exists(f"{self._proc}/{pid}")}
        held = self._reading or self._search.reading
        if self._busy_seconds() >= LATE_SECONDS and held and len(self._holding) < _MOST_LEFT_BEHIND:
            self._holding.add(held)
            self._start()

    def _start(self) -> None:
        """What a thread that was left behind still does comes to nothing: it has another search."""
        self._search = HooklessSearch(self._proc, self._holding)
        self._reading, self._busy_since_ns = 0, None
        threading.Thread(target=self._run, args=(self._search,), daemon=True).start()

    def _run(self, search: HooklessSearch) -> None:
        next_search_ns = 0
        while search is self._search:
            left = max(0.0, (next_search_ns - self._now_ns()) / 1e9)
            try:
                pid, start_ticks = self._wanted.get(timeout=min(left, self._search_seconds) or 0.001)
            except queue.Empty:
                self._busy_since_ns = self._now_ns()
                next_search_ns = self._busy_since_ns + int(self._search_seconds * 1e9)
                # This thread serves all ranks: what one process does to it must not end it.
                with contextlib.suppress(Exception):
                    known, began_ns = self.known, self._busy_since_ns
                    found, children = tuple(search.search(known)), search.children(known)
                    if search is self._search:
                        self._found, self._beside, self._children = found, search.beside, (began_ns, children)
            else:
                if pid in self._holding:
                    continue
                self._reading, self._busy_since_ns = pid, self._now_ns()
                facts = read_facts(pid, start_ticks, self._proc)
                if search is not self._search:
                    return
                self._facts[pid, start_ticks], self._reading = facts, 0
            if search is self._search:
                self._busy_since_ns = None


def read_facts(pid: int, start_ticks: int, proc: str = "/proc") -> SlowFacts:
    """Return what can be read of a process; what is not ours to read is empty."""
    command, environment = "", {}
    try:
        with ProcessDirectory(pid, proc) as directory:
            if directory.stat().start_ticks == start_ticks:
                argv = [name_of(word) for word in directory.read("cmdline").split(b"\0") if word]
                command = " ".join(scrubbed_argv(argv))[:_COMMAND_CHARACTERS]
                environment = parse_environment(directory.read("environ", ENVIRONMENT_LIMIT_BYTES))
    except (OSError, ValueError):
        pass  # it ended, or is another user's
    return SlowFacts(command, environment)
