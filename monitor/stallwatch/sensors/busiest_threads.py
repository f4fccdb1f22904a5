"""The threads of a process that have done most, read every tick: they tell whether a rank without a hook trains."""

from stallwatch.model.snapshot import ThreadSample
from stallwatch.node.procfs import ProcessDirectory, parse_schedstat, parse_status

# Beside the main one: who trains, gloo's or NCCL's threads, a recorder. The rest of hundreds sleeps for the most part.
_MOST = 8
# And those of gloo that carry most, where a pool of OpenMP's threads is busier than any of them.
_MOST_OF_GLOO = 2
# Reads, at first and later: a new thread that does much is among them soon, and to ask 300 takes 2.5 ms.
_CHOSEN_EVERY = (10, 30)
_MOST_LISTED = 1024  # threads of one process that are asked: it may have as many as it likes
# Between two reads, which are a second apart: who ran so long may spin, and is asked how often it has slept.
_MAY_SPIN_NS = 500_000_000
# The threads of a group of gloo in which its collectives run, as torch names them; those of NCCL only watch.
_COMMUNICATES = b"pt_gloo_"


class BusiestThreads:
    """Those of one process. What they have done is counted since they began, so one that stands stays among them."""

    def __init__(self, directory: ProcessDirectory) -> None:
        self._directory = directory
        self._main = str(directory.pid)
        self._chosen: tuple[str, ...] = ()
        self._reads = 0
        self._ran: dict[str, int] = {}
        self._communicates: dict[str, bool] = {}
        self._settled: set[str] = set()  # asked twice: a thread takes its name a moment after it began
        self._is_told = True  # kernels without CONFIG_SCHED_INFO do not tell it

    def read(self) -> tuple[ThreadSample, ...]:
        """The main thread first; empty where the kernel does not tell. Raise ProcessLookupError when the process is
        gone."""
        at_first, later = _CHOSEN_EVERY
        if self._is_told and self._reads % (at_first if self._reads < later else later) == 0:
            self._choose()
        if not self._is_told:
            return ()
        self._reads += 1
        samples: list[ThreadSample] = []
        for tid in self._chosen:
            try:
                run_ns = parse_schedstat(self._directory.read_again(f"task/{tid}/schedstat"))
                before, self._ran[tid] = self._ran.get(tid), run_ns
                may_spin = before is not None and run_ns - before >= _MAY_SPIN_NS
                wakes = self._wakes(tid) if may_spin else None
                samples.append(ThreadSample(int(tid), run_ns, self._communicates[tid], wakes))
            except ProcessLookupError:
                continue  # that thread has ended
            except (OSError, ValueError):
                self._is_told = False
                return ()
        has_main = bool(samples) and samples[0].tid == self._directory.pid  # it may end before its process does
        return tuple(samples) if has_main else ()

    def _wakes(self, tid: str) -> int | None:
        return parse_status(self._directory.read_again(f"task/{tid}/status")).wakes

    def _choose(self) -> None:
        ran: list[tuple[int, str]] = []
        for tid in self._listed():
            try:
                ran.append((parse_schedstat(self._directory.read(f"task/{tid}/schedstat")), tid))
            except (OSError, ValueError):
                continue
        self._is_told = bool(ran)
        others = [tid for _, tid in sorted(ran, reverse=True) if tid != self._main]
        known, settled = self._communicates, self._settled
        communicates = {
            tid: known[tid] if tid in settled else self._name(tid).startswith(_COMMUNICATES)
            for tid in (self._main, *others)
        }
        self._settled = known.keys() & communicates.keys()
        of_gloo = [tid for tid in others[_MOST:] if communicates[tid]][:_MOST_OF_GLOO]
        chosen = (self._main, *others[:_MOST], *of_gloo)
        for tid in set(self._chosen).difference(chosen):
            self._directory.let_go(f"task/{tid}/schedstat")
            self._directory.let_go(f"task/{tid}/status")
            self._ran.pop(tid, None)
        self._communicates = communicates
        self._chosen = chosen

    def _listed(self) -> list[str]:
        try:
            return self._directory.names("task")[:_MOST_LISTED]
        except PermissionError:
            return []

    def _name(self, tid: str) -> bytes:
        try:
            return self._directory.read(f"task/{tid}/comm")
        except OSError:
            return b""  # it has ended
