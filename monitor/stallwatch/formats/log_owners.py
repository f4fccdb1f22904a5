"""Which rank wrote a line that does not say so: by the other lines of its process, and by what launchers number."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from stallwatch.formats.log_job_states import JobStates
from stallwatch.formats.log_prefix import Line
from stallwatch.model.log_event import PROCESS_ENDS, LogEvent

# Where an agent of torchrun stands between srun or mpirun and the ranks, a task is a node.
_AGENTS = (
    "torch/distributed/elastic",
    "torch.distributed.elastic",
    "torchelastic",
    "[default",
    "torch.distributed.run",
    "/stable/elastic/errors.html",  # in its table of failures
)
# DeepSpeed's launcher; torchrun's at LOGLEVEL=INFO, one field a line.
_NODE: Final = re.compile(r"nnodes=(?P<nodes>\d+), num_local_procs=(?P<locals>\d+), node_rank=(?P<node>\d+)")
_NODES: Final = re.compile(r"\s*(?:group_world_size=|min_nodes +: )(?P<nodes>\d+)$")
_LOCAL_RANKS: Final = re.compile(r"\s*local_ranks=\[(?P<ranks>[\d, ]+)\]")
_GLOBAL_RANKS: Final = re.compile(r"\s*global_ranks=\[(?P<ranks>[\d, ]+)\]")
_MOST_LOCAL: Final = 1_024
_GROUP_RANK: Final = re.compile(r"^\[[EW] ?ProcessGroup\w+\.cpp:\d+\] \[Rank (\d{1,6})\]")  # torch to 2.1 marks no line


class LineOwners:
    """Fed with every line that was looked at; `named` completes the events of one log."""

    def __init__(self) -> None:
        self._of_writer: dict[str, set[int]] = defaultdict(set)
        self._of_task: dict[int, set[int]] = defaultdict(set)
        self._of_pid: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._agent = False
        self._of_agents: set[str] = set()  # writers (a pod, a container) in which an agent writes beside its ranks
        self.by_local_rank = False
        self._hosts: set[str] = set()
        self._nodes = 1
        self._of_local: dict[str, dict[int, int]] = defaultdict(
            dict
        )  # host, as far as lines tell it: rank by local rank
        self._locals: list[int] = []
        self._job_states = JobStates()

    @property
    def nodes(self) -> int:
        """Of how many nodes the log tells."""
        return max(self._nodes, len(self._hosts))

    def feed(self, line: Line) -> None:
        """Take what a line tells of hosts, pids and ranks."""
        if line.host:
            self._hosts.add(line.host.partition(".")[0] if not line.host[0].isdigit() else line.host)
        self._job_states.feed(line.text)
        self.by_local_rank = self.by_local_rank or line.local_rank is not None
        if "node" in line.text or "_ranks=[" in line.text or "group_world_size" in line.text:
            self._take_nodes(line)
        if line.local_rank is not None:
            self._agent = True
        elif (not self._agent or line.writer not in self._of_agents) and any(mark in line.text for mark in _AGENTS):
            self._agent = True
            self._of_agents.add(line.writer)
        if line.task is not None:
            self._of_task[line.task].update(() if line.rank is None else (line.rank,))
            if "[Rank " in line.text and (own := _GROUP_RANK.search(line.text)) and int(own[1]) > line.task:
                self._of_task[line.task].add(int(own[1]))  # no rank of a group is above that of the job
        if line.rank is not None and line.writer:
            self._of_writer[line.writer].add(line.rank)
        if line.rank is not None and line.pid is not None:
            self.process(line.host or "", line.pid, line.rank)

    def _take_nodes(self, line: Line) -> None:
        if match := _NODE.search(line.text):
            self._nodes = max(self._nodes, int(match["nodes"]))
            first, size = int(match["node"]) * int(match["locals"]), min(int(match["locals"]), _MOST_LOCAL)
            ranks_of = {local: first + local for local in range(size)}
            before = self._of_local.get(line.host or "", ranks_of)
            self._of_local[line.host or ""] = (
                ranks_of if before == ranks_of else {}
            )  # two nodes that nothing tells apart
        elif match := _NODES.match(line.text):
            self._nodes = max(self._nodes, int(match["nodes"]))
        elif match := _LOCAL_RANKS.match(line.text):
            self._locals = [int(rank) for rank in match["ranks"].split(",") if rank.strip()]
        elif match := _GLOBAL_RANKS.match(line.text):
            ranks = [int(rank) for rank in match["ranks"].split(",") if rank.strip()]
            self._of_local[line.host or ""] = dict(zip(self._locals, ranks, strict=False))

    def take_communicators(self, events: Sequence[LogEvent]) -> None:
        """NCCL tells a process' rank in a communicator; in the largest one that is its rank in the job."""
        inits = [e for e in events if e.kind in ("nccl_init_started", "nccl_init_complete") and e.pid is not None]
        largest = max((event.expected or 0 for event in inits), default=0)
        for event in inits:
            if event.expected == largest and event.group_rank is not None and event.pid is not None:
                self.process(event.host or "", event.pid, event.group_rank)

    def process(self, host: str, pid: int, rank: int) -> None:
        """Note whose process that is."""
        self._of_pid[host, pid].add(rank)

    def named(self, event: LogEvent, writer: str) -> LogEvent:
        """The event with its rank, where anything else in the log tells it."""
        if event.rank is not None:
            return event
        if event.local_rank is not None and (rank := self._by_local(event)) is not None:
            return replace(event, rank=rank)
        if event.kind in PROCESS_ENDS or (event.kind == "memory_killed" and event.ranks):
            return event  # it tells of another process than the one that writes it
        if event.kind == "actor_died":  # who asked it for something tells that
            known = self._of_process(event)
            return replace(event, rank=next(iter(known))) if known is not None and len(known) == 1 else event
        of_writer = self._of_writer.get(writer) if writer not in self._of_agents else None
        for ranks in (of_writer, self._of_process(event)):
            if ranks is not None and len(ranks) == 1:
                return replace(event, rank=next(iter(ranks)))
        if event.task is not None and self._task_is_rank():
            return replace(event, rank=event.task)
        return event

    def _by_local(self, event: LogEvent) -> int | None:
        """The rank that the launcher of its node said to have this local rank; where no line names its node, of the one
        launcher that said it."""
        told = self._of_local.get(event.host or "")
        if told is None and len(self._of_local) == 1 and not event.host:
            told = next(iter(self._of_local.values()))
        return told.get(event.local_rank) if told and event.local_rank is not None else None

    def of_one_job(self, events: Sequence[LogEvent]) -> Sequence[LogEvent]:
        """Given events, return them without what is told of jobs of which this log may not be."""
        return self._job_states.of_one_job(events)

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
        for (host, pid), ranks in self._of_pid.items():
            if pid == event.pid and not (host and event.kind == "actor_died"):  # containers have the same on every node
                found |= ranks
        return found

    def _task_is_rank(self) -> bool:
        return not self._agent and all(ranks <= {task} for task, ranks in self._of_task.items())


_ACTOR: Final = re.compile(r"\((?P<actor>[\w.<>-]+) pid=")
_NUMBER: Final = re.compile(r"\d+")


def apart_by_actor(events: list[LogEvent], writers: Mapping[int, str]) -> list[LogEvent]:
    """Given events and by place what a launcher put before their lines, tell groups of one name apart that actors of
    several classes of Ray print: an actor's model, its critic and its reference are jobs of their own, each with ranks
    from 0 and a group that is called default_pg. Names that differ by a number are of one class: an actor may name
    itself by its rank ("Trainer-3"), and vLLM's workers do."""
    found = {place: _ACTOR.search(writers.get(place, "")) for place, e in enumerate(events) if e.group is not None}
    actors = {place: _NUMBER.sub("", match["actor"]) for place, match in found.items() if match}
    if len(set(actors.values())) < 2:
        return events
    return [
        replace(event, group_id=f"{actors[place]} {event.group_id or ''}") if place in actors else event
        for place, event in enumerate(events)
    ]
