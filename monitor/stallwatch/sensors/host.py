"""The node itself: what its kernel reported, its shared memory, open files and network ports. What is absent or closed
is said with what it would need."""

import os
import time
from collections import deque
from collections.abc import Callable

import msgspec

from stallwatch.formats.kernel_log import parse
from stallwatch.model.kernel import KernelEvent
from stallwatch.model.snapshot import HostSample, NetworkPort
from stallwatch.node.aside import OneCallAtATime
from stallwatch.sensors.kernel_messages import KernelLogUnreadable, KernelMessages, open_messages
from stallwatch.sensors.network_ports import read_ports
from stallwatch.sensors.sensor import KEPT_SECONDS, LATE_SECONDS, Options

_KEPT = 100
_PORTS_SECONDS = 10.0
_AGAIN_SECONDS = 60.0
_TEXT_CHARACTERS = 400
_CONTEXT_LINES = 4  # a GPU off the bus is told in three lines, an OOM kill in two


def make(options: Options) -> "HostSensor":
    """The sensor by its options."""
    return HostSensor()


class HostSensor:
    """The host: memory, pressure, ports, kernel log."""

    def __init__(
        self,
        open_log: Callable[[], KernelMessages] = open_messages,
        proc: str = "/proc",
        sys: str = "/sys",
        shared_memory: str = "/dev/shm",  # noqa: S108 - it is looked at, not written
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._open_log = open_log
        self._proc = proc
        self._shared_memory = shared_memory
        self._now_ns = monotonic_ns
        self._log: KernelMessages | None = None
        self._log_problem = ""
        self._open_again_ns = 0
        self._before: deque[str] = deque(maxlen=_CONTEXT_LINES)
        self._notices: deque[KernelEvent] = deque(maxlen=_KEPT)
        self._ports = Ports(sys, monotonic_ns)

    def read(self) -> HostSample:
        """Return the node's state at this tick. What cannot be read is in `missing`, with the reason; it raises nothing
        of that."""
        missing: dict[str, str] = {}
        self._follow_log(missing)
        oldest_ns = self._now_ns() - int(KEPT_SECONDS * 1e9)
        while self._notices and (self._notices[0].at_ns or 0) < oldest_ns:
            self._notices.popleft()
        return HostSample(
            notices=tuple(self._notices),
            shared_memory_bytes=self._space(missing),
            open_files=self._open_files(missing),
            memory_available_bytes=self._memory_available(missing),
            ports=self._ports.latest(missing),
            missing=tuple(missing.items()),
        )

    def _follow_log(self, missing: dict[str, str]) -> None:
        try:
            if self._log is None and self._now_ns() >= self._open_again_ns:
                self._log = self._open_log()
            if self._log is not None:
                self._log_problem = ""
                for seconds, text in self._log.read():
                    self._take(seconds, text)
        except (KernelLogUnreadable, OSError) as error:
            self._log = None
            self._log_problem = str(error)
            self._open_again_ns = self._now_ns() + int(_AGAIN_SECONDS * 1e9)
        if self._log_problem:
            missing["kernel log"] = self._log_problem

    def _take(self, seconds: float | None, text: str) -> None:
        """Parsed with the lines before it, for some reports take several; only what this line added counts."""
        lines = [*self._before, text]
        self._before.append(text)
        at_ns = self._now_ns() if seconds is None else int(seconds * 1e9)
        if at_ns < self._now_ns() - int(KEPT_SECONDS * 1e9):
            return
        for event in parse("\n".join(lines).encode()).events:
            if event.line == len(lines):
                text = event.text.strip()[:_TEXT_CHARACTERS]
                self._notices.append(msgspec.structs.replace(event, at_ns=at_ns, text=text, line=0))

    def _space(self, missing: dict[str, str]) -> tuple[int, int] | None:
        try:
            space = os.statvfs(self._shared_memory)
        except OSError as error:
            missing["shared memory"] = f"{self._shared_memory}: {error.strerror}"
            return None
        return (space.f_blocks - space.f_bavail) * space.f_frsize, space.f_blocks * space.f_frsize

    def _open_files(self, missing: dict[str, str]) -> tuple[int, int] | None:
        path = f"{self._proc}/sys/fs/file-nr"
        try:
            with open(path, encoding="ascii") as file:
                allocated, _, limit = file.read().split()
            return int(allocated), int(limit)
        except (OSError, ValueError) as error:
            missing["open files"] = f"{path}: {error}"
            return None

    def _memory_available(self, missing: dict[str, str]) -> int | None:
        path = f"{self._proc}/meminfo"
        try:
            with open(path, encoding="ascii") as file:
                for line in file:
                    if line.startswith("MemAvailable:"):
                        return int(line.split()[1]) * 1024
            missing["memory"] = f"{path} has no MemAvailable"
        except (OSError, ValueError, IndexError) as error:
            missing["memory"] = f"{path}: {error}"
        return None


class Ports:
    """Reads the ports in a thread every ten seconds; a read that does not come back is said, and not repeated."""

    def __init__(self, sys: str, monotonic_ns: Callable[[], int]) -> None:
        self._sys = sys
        self._now_ns = monotonic_ns
        self._aside = OneCallAtATime[None](lambda: monotonic_ns() / 1e9)
        self._value: tuple[NetworkPort, ...] | None = None
        self._due_ns = 0

    def latest(self, missing: dict[str, str]) -> tuple[NetworkPort, ...] | None:
        """The ports as last read; None before that."""
        now_ns = self._now_ns()
        seconds = self._aside.silent_seconds
        if seconds is not None:
            if seconds > LATE_SECONDS:
                missing["network ports"] = f"sysfs has not answered for {seconds:.0f} s: a network card may be sick"
        elif now_ns >= self._due_ns:
            self._due_ns = now_ns + int(_PORTS_SECONDS * 1e9)
            self._aside.begin(self._read)
        if self._value is not None and not self._value:
            missing.setdefault("network ports", "no InfiniBand and no Ethernet hardware in /sys/class")
        return self._value

    def _read(self) -> None:
        self._value = read_ports(self._sys)
