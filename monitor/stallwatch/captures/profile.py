"""What a rank does over some seconds: stacks by py-spy, without a pause, and what it uses of the node meanwhile."""

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence

from stallwatch.captures.folder import Folder, NotCaptured
from stallwatch.captures.neighbours import neighbours, ran_on, threads_of
from stallwatch.captures.process import is_python
from stallwatch.captures.stacks import PySpies, explain_failure, whole
from stallwatch.config_sections import CaptureSection
from stallwatch.formats.outside_text import text_of
from stallwatch.model.evidence import ChildProcess, Neighbour, Usage
from stallwatch.model.process import ENDED, is_frozen
from stallwatch.model.snapshot import RankSample
from stallwatch.node.cgroups import periods
from stallwatch.node.memory_file import memory_file
from stallwatch.node.procfs import TICKS_PER_SECOND, ProcessDirectory, Stat, parse_stat, parse_wchan

# py-spy draws the time between two samples by chance (exponentially), so that steps of any length are seen in all
# their parts. A sample of a process of torch costs it about 0.2 ms.
_PER_SECOND = 25
_CHILDREN_PER_SECOND = 10
_MOST_CHILDREN = 2  # of each rank: workers of one loader do the same
LATE_SECONDS = 4.0  # it reads symbols first, and prints last
_OUTPUT_LIMIT_BYTES = 2 << 20
_TICK_SECONDS = 1.0 / TICKS_PER_SECOND
_ALLOWED = re.compile(rb"^Cpus_allowed_list:\s*([0-9,-]+)$", re.MULTILINE)
_SWAP = re.compile(rb"^VmSwap:\s*([0-9]+) kB$", re.MULTILINE)
_MOST_CPUS = 8192


class ProfileCapture:
    """Of one rank; `take` lasts as long as the profile."""

    def __init__(self, sample: RankSample, folder: Folder, section: CaptureSection) -> None:
        self._sample = sample
        self._folder = folder
        self._py_spies = PySpies(section)
        self.lines: list[tuple[str, int]] = []  # (file, line) of the frames that were seen

    def take(self, seconds: int) -> None:
        """Sample the rank's stacks for so many seconds, and keep them."""
        asked_ns = time.monotonic_ns()
        try:
            data = self._record(self._sample.pid, _PER_SECOND, seconds)
        except NotCaptured as error:
            self._folder.note("profile", asked_ns, False, f"{error}. {error.help}")
            return
        self._folder.write("profile.txt", data)
        self._folder.note("profile", asked_ns, True)
        self.lines = _lines(data)

    def take_child(self, pid: int, seconds: int) -> None:
        """The same of a child process, less often."""
        with self._folder.attempt(f"profile.child-{pid}"):
            data = self._record(pid, _CHILDREN_PER_SECOND, seconds)
            self._folder.write(f"profile.child-{pid}.txt", data)
            self.lines += _lines(data)

    def abandon(self) -> None:
        """End the samplers that still run."""
        self._py_spies.kill()

    def _record(self, pid: int, rate: int, seconds: int) -> bytes:
        # What it prints for a person is apart from its stacks, which go into a file of their own.
        with memory_file() as file:
            arguments = (
                "record", "--nonblocking", "--idle", "--threads", "--full-filenames", "--format", "raw",
                "--rate", str(rate), "--duration", str(seconds), "--output", f"/proc/self/fd/{file.fileno()}",
                "--pid", str(pid),
            )  # fmt: skip
            lends = [file.fileno()]
            with self._py_spies.started(*arguments, limit_bytes=_OUTPUT_LIMIT_BYTES, lends=lends) as running:
                running.wait(seconds + LATE_SECONDS)
                ended = whole(running.poll(), seconds + LATE_SECONDS, _OUTPUT_LIMIT_BYTES)
            stacks = file.read()
        if not stacks:
            raise explain_failure(text_of(ended.errors), pid)
        return stacks


def children_to_profile(children: Sequence[ChildProcess]) -> list[int]:
    """Pids of children that are alive and Python, ascending."""
    python = (child.pid for child in children if child.state not in ENDED and is_python(child.pid))
    return sorted(python)[:_MOST_CHILDREN]


_FRAME = re.compile(rb" \(([^();]+\.py):([0-9]{1,9})\)(?=[; ])")


def _lines(data: bytes) -> list[tuple[str, int]]:
    """What source lines tell what it did."""
    found = dict.fromkeys(_FRAME.findall(data))
    return [(os.fsdecode(file), int(line)) for file, line in found]


class UsageCapture:
    """Between construction and `taken`. Raise ProcessLookupError when the process is gone, OSError or ValueError when
    /proc does not tell."""

    def __init__(
        self,
        pid: int,
        start_ticks: int,
        others: Mapping[int, Stat],
        proc: str = "/proc",
        cgroups: str = "/sys/fs/cgroup",
    ) -> None:
        """`others`: all processes now, as `neighbours.processes` gives them."""
        self._cgroups = cgroups
        self._pid = pid
        self._start_ticks = start_ticks
        self._proc = proc
        self._others = others
        self._threads = threads_of(pid, proc)
        self._began = time.monotonic()
        self._before = self._counters()
        self._seen = self._stopped = self._frozen = 0
        self._periods = self._quota_periods()

    def see(self) -> None:
        """Note whether it stands held at this moment, by whatever: who is let go on again and again shows that at few
        looks, and each of them is one moment."""
        with ProcessDirectory(self._pid, self._proc) as directory:
            state = parse_stat(directory.read(f"task/{self._pid}/stat")).state
            self._stopped += state == "T"
            self._frozen += is_frozen([parse_wchan(directory.read(f"task/{self._pid}/wchan"))])
            self._seen += 1

    def taken(self, look: int, ranks: Mapping[int, RankSample], others: Mapping[int, Stat]) -> Usage:
        """`ranks`: by pid all that are known on this node; `others`: all processes now."""
        seconds = time.monotonic() - self._began
        after = self._counters()
        changed = {key: after[key] - value for key, value in self._before.items() if key in after}
        with ProcessDirectory(self._pid, self._proc) as directory:
            status = directory.read(f"task/{self._pid}/status")
        swap, allowed = _SWAP.search(status), _ALLOWED.search(status)
        cpus = _cpus(allowed[1].decode()) if allowed else None

        def share(name: str, unit_seconds: float) -> float | None:
            return min(1.0, changed[name] * unit_seconds / seconds) if name in changed and seconds else None

        return Usage(
            look=look,
            seconds=seconds,
            cpu_share=share("cpu_ticks", _TICK_SECONDS),
            runnable_share=share("runnable_ns", 1e-9),
            major_faults=changed.get("major_faults"),
            read_bytes=changed.get("read_bytes"),
            write_bytes=changed.get("write_bytes"),
            swapped_bytes=int(swap[1]) << 10 if swap else None,
            cpus=cpus,
            beside=self._beside(cpus or (), ranks, others, seconds),
            stopped_share=self._stopped / self._seen if self._seen else None,
            frozen_share=self._frozen / self._seen if self._seen else None,
            throttled_share=self._throttled_share(),
        )

    def _throttled_share(self) -> float | None:
        """By the one of its control groups whose quota is used up the most."""
        shares = [
            (throttled - self._periods[group][1]) / (many - self._periods[group][0])
            for group, (many, throttled) in self._quota_periods().items()
            if group in self._periods and many > self._periods[group][0]
        ]
        return max(shares, default=None)

    def _quota_periods(self) -> dict[str, tuple[int, int]]:
        with contextlib.suppress(OSError), ProcessDirectory(self._pid, self._proc) as directory:
            return periods(os.fsdecode(directory.read("cgroup")), self._cgroups)
        return {}

    def _counters(self) -> dict[str, int]:
        with ProcessDirectory(self._pid, self._proc) as directory:
            whole = directory.stat()
            if whole.start_ticks != self._start_ticks:
                raise ProcessLookupError(f"pid {self._pid} belongs to another process now")
            main = parse_stat(directory.read(f"task/{self._pid}/stat"))
            found = {"cpu_ticks": main.cpu_ticks, "major_faults": whole.major_faults}
            for read in (self._runnable, self._io):
                with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
                    found |= read(directory)  # else not ours to know, or a kernel without it: it stays unknown
            return found

    def _runnable(self, directory: ProcessDirectory) -> dict[str, int]:
        return {"runnable_ns": int(directory.read(f"task/{self._pid}/schedstat").split()[1])}

    def _io(self, directory: ProcessDirectory) -> dict[str, int]:
        values = dict(line.split(b": ", 1) for line in directory.read("io").splitlines() if b": " in line)
        return {key: int(values[key.encode()]) for key in ("read_bytes", "write_bytes")}

    def _beside(
        self, cpus: Sequence[int], ranks: Mapping[int, RankSample], others: Mapping[int, Stat], seconds: float
    ) -> tuple[Neighbour, ...]:
        if not cpus or not seconds:
            return ()
        ran = ran_on(self._others, others, cpus, seconds)
        threads = ran_on(self._threads, threads_of(self._pid, self._proc), cpus, seconds)
        return neighbours(self._pid, ran, threads, others, ranks)


def _cpus(ranges: str) -> tuple[int, ...]:
    """ "0-3,5" as numbers."""
    found: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), min(int(last or first), _MOST_CPUS) + 1)
    return tuple(found)
