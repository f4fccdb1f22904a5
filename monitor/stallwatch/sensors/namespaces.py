"""Finds the process behind a hook's record: its pid is of the writer's own PID namespace."""

import os

from stallwatch.model.snapshot import Heartbeat
from stallwatch.node.procfs import namespace_of, stat_of, status_of


class PidTranslation:
    """Translates pids of other PID namespaces to ours; searches are few, for each reads the status of every process."""

    def __init__(self, proc: str = "/proc", search_seconds: float = 5.0) -> None:
        self._proc = proc
        self._search_ns = int(search_seconds * 1e9)
        self._own = namespace_of("self", "pid", proc)
        self._next_search_ns = 0
        self._by_inner: dict[int, list[int]] = {}

    def find(self, heartbeat: Heartbeat, now_ns: int) -> int | None:
        """Return our pid of the process with this inner pid and these start ticks; None when there is none (yet)."""
        if heartbeat.pid_namespace in (0, self._own) or self._own is None:
            return heartbeat.pid if self._started_at(heartbeat.pid) == heartbeat.start_ticks else None
        for pid in self._candidates(heartbeat.pid, now_ns):
            namespace = namespace_of(pid, "pid", self._proc)
            # Not ours to read without ptrace access; start ticks then tell the process alone.
            if namespace in (None, heartbeat.pid_namespace) and self._started_at(pid) == heartbeat.start_ticks:
                return pid
        return None

    def _candidates(self, inner: int, now_ns: int) -> list[int]:
        found = [pid for pid in self._by_inner.get(inner, ()) if self._started_at(pid) is not None]
        if not found and now_ns >= self._next_search_ns:
            self._next_search_ns = now_ns + self._search_ns
            self._by_inner = self._search()
            found = self._by_inner.get(inner, [])
        return found

    def _search(self) -> dict[int, list[int]]:
        by_inner: dict[int, list[int]] = {}
        for name in os.listdir(self._proc):
            if not name.isdecimal():
                continue
            try:
                pids = status_of(int(name), self._proc).namespace_pids
            except (OSError, ValueError):
                continue
            if len(pids) > 1:
                by_inner.setdefault(pids[-1], []).append(int(name))
        return by_inner

    def _started_at(self, pid: int) -> int | None:
        try:
            return stat_of(pid, self._proc).start_ticks
        except (OSError, ValueError):
            return None
