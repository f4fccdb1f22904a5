"""Finds ranks that have no hook: the topmost process that names a rank and has torch in it."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from stallwatch.node.procfs import parse_stat
from stallwatch.sensors.environ import RankNames, parse_environment, rank_names

_ENVIRONMENT_LIMIT_BYTES = 1 << 20
_MAPS_LIMIT_BYTES = 8 << 20
# Ends of other ranks are looked for between so many processes, so that a long search does not blur their order.
_LOOK_EVERY = 32
# A process imports torch seconds after it starts; later ones are found by the heartbeat of their hook alone.
_MOST_TRIES = 60
# Between fork and exec a process still shows its parent's environment: nameless ones are read again a few times.
_ENVIRONMENT_READS = 3


class FoundRank(NamedTuple):
    pid: int
    start_ticks: int
    names: RankNames


class _Seen(NamedTuple):
    parent_pid: int
    names: RankNames | None
    reads: int


class HooklessSearch:
    """Searches every few seconds; a process' environment is read once, its maps until torch appears in them."""

    def __init__(self, proc: str = "/proc", search_seconds: float = 5.0) -> None:
        self._proc = proc
        self._search_ns = int(search_seconds * 1e9)
        self._next_ns = 0
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._tries: dict[tuple[int, int], int] = {}

    def due(self, now_ns: int) -> bool:
        return now_ns >= self._next_ns

    def search(self, known: Iterable[int], now_ns: int, meanwhile: Callable[[], None]) -> Iterator[FoundRank]:
        """Yield ranks that are not among the `known` pids nor below one of the same rank."""
        self._next_ns = now_ns + self._search_ns
        living = self._look_at_all(meanwhile)
        for key in [key for key in self._seen if key not in living]:
            self._seen.pop(key)
            self._tries.pop(key, None)
        by_pid = {pid: (start_ticks, seen) for (pid, start_ticks), seen in self._seen.items()}
        known = set(known)
        for pid, (start_ticks, seen) in by_pid.items():
            if seen.names is None or pid in known or self._has_ancestor(seen, by_pid):
                continue
            tries = self._tries.get((pid, start_ticks), 0)
            if tries < _MOST_TRIES:
                self._tries[pid, start_ticks] = tries + 1
                if self._has_torch(pid):
                    yield FoundRank(pid, start_ticks, seen.names)

    def _look_at_all(self, meanwhile: Callable[[], None]) -> set[tuple[int, int]]:
        living = set()
        for number, name in enumerate(os.listdir(self._proc)):
            if not name.isdigit():
                continue
            if number % _LOOK_EVERY == 0:
                meanwhile()
            try:
                with open(f"{self._proc}/{name}/stat", "rb") as file:
                    stat = parse_stat(file.read())
            except (OSError, ValueError):
                continue
            key = (stat.pid, stat.start_ticks)
            living.add(key)
            seen = self._seen.get(key) or _Seen(stat.parent_pid, None, 0)
            names, reads = seen.names, seen.reads
            # A kernel thread has no pages and no environment.
            if names is None and reads < _ENVIRONMENT_READS and stat.resident_pages:
                names, reads = self._names(stat.pid), reads + 1
            self._seen[key] = _Seen(stat.parent_pid, names, reads)
        return living

    def _names(self, pid: int) -> RankNames | None:
        try:
            with open(f"{self._proc}/{pid}/environ", "rb") as file:
                environment = parse_environment(file.read(_ENVIRONMENT_LIMIT_BYTES))
        except OSError:
            return None
        return None if environment.get("STALLWATCH_DISABLE", "") not in ("", "0") else rank_names(environment)

    @staticmethod
    def _has_ancestor(seen: _Seen, by_pid: dict[int, tuple[int, _Seen]]) -> bool:
        """Loader workers, compilers and trackers inherit the variables of their rank."""
        parent = by_pid.get(seen.parent_pid)
        for _ in range(64):
            if parent is None:
                return False
            if parent[1].names == seen.names:
                return True
            parent = by_pid.get(parent[1].parent_pid)
        return False

    def _has_torch(self, pid: int) -> bool:
        try:
            with open(f"{self._proc}/{pid}/maps", "rb") as file:
                return b"/libtorch" in file.read(_MAPS_LIMIT_BYTES)
        except OSError:
            return False
