"""Which rank wrote a line that does not say so: by the other lines of its process, and by what launchers number."""

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from stallwatch.formats.log_prefix import Line
from stallwatch.model.evidence import LogEvent

# Where an agent of torchrun stands between srun or mpirun and the ranks, a task is a node.
_AGENTS = (
    "torch/distributed/elastic",
    "torch.distributed.elastic",
    "torchelastic",
    "[default",
    "torch.distributed.run",
)


class Owners:
    """Fed with every line that was looked at; `named` completes the events of one log."""

    def __init__(self) -> None:
        self._of_writer: dict[str, set[int]] = defaultdict(set)
        self._of_task: dict[int, set[int]] = defaultdict(set)
        self._of_pid: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._agent = False

    def feed(self, line: Line) -> None:
        if not self._agent and (line.local_rank is not None or any(mark in line.text for mark in _AGENTS)):
            self._agent = True
        if line.task is not None:
            self._of_task[line.task].update(() if line.rank is None else (line.rank,))
        if line.rank is not None and line.writer:
            self._of_writer[line.writer].add(line.rank)
        if line.rank is not None and line.pid is not None:
            self.process(line.host or "", line.pid, line.rank)

    def take_communicators(self, events: Sequence[LogEvent]) -> None:
        """NCCL tells a process' rank in a communicator; in the largest one that is its rank in the job."""
        inits = [e for e in events if e.kind in ("nccl_init_started", "nccl_init_complete") and e.pid is not None]
        largest = max((event.expected or 0 for event in inits), default=0)
        for event in inits:
            if event.expected == largest and event.group_rank is not None and event.pid is not None:
                self.process(event.host or "", event.pid, event.group_rank)

    def process(self, host: str, pid: int, rank: int) -> None:
        self._of_pid[host, pid].add(rank)

    def named(self, event: LogEvent, writer: str) -> LogEvent:
        """The event with its rank, where anything else in the log tells it."""
        if event.rank is not None or event.kind in ("launcher_failure", "process_failed"):
            return event
        for ranks in (self._of_writer.get(writer), self._of_process(event)):
            if ranks is not None and len(ranks) == 1:
                return replace(event, rank=next(iter(ranks)))
        if event.task is not None and self._task_is_rank():
            return replace(event, rank=event.task)
        return event

    def tasks_are_ranks(self) -> bool:
        """Whether the numbers of srun's own messages are ranks: no agent of torchrun wrote here."""
        return not self._agent

    def _of_process(self, event: LogEvent) -> set[int] | None:
        if event.pid is None:
            return None
        exact = self._of_pid.get((event.host or "", event.pid))
        if exact or event.host:
            return exact
        found: set[int] = set()
        for (_, pid), ranks in self._of_pid.items():
            if pid == event.pid:
                found |= ranks
        return found

    def _task_is_rank(self) -> bool:
        return not self._agent and all(ranks <= {task} for task, ranks in self._of_task.items())
