"""What befalls a fleet in one simulated incident, and what each of its nodes sees of the standstill itself."""

import random
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import msgspec

from stallwatch.bundle.report import report_of
from stallwatch.diagnosis import judge
from stallwatch.diagnosis.node_summary import NodeSummary, redacted, summarise_node
from stallwatch.fleet.node_word import NodeWord
from stallwatch.model.verdict import Report
from tests.builders.job import SLEEPS, Call, Rank, evidence, loop, world

# stands (in its own code), sleeps (with patience), stopped, killed: of one rank. mismatch: it calls another
# operation. all_wait: every rank has entered, and nothing ends; nobody is to be named.
Fault = Literal["stands", "sleeps", "killed", "stopped", "mismatch", "all_wait"]
UNDECIDED_SECONDS = 90.0  # tell.undecided_seconds, in a shorter day


def host(node: int) -> str:
    return f"node{node}"


@cache
def scene(nodes: int, culprit: int, fault: Fault, per_node: int = 2) -> tuple[tuple[Report, bytes], ...]:
    """By node: its own report, of what it sees alone, and its summary for the others."""
    size = nodes * per_node
    calls = loop(world(size), 4)
    last = (*calls, calls[0])
    how = {
        "stands": Rank(culprit, calls, frames=SLEEPS, wchan="futex_wait_queue"),
        "sleeps": Rank(culprit, calls, frames=SLEEPS),
        "killed": Rank(culprit, calls, dumped=False, state="Z", wchan=None, exit_signal=9),
        "stopped": Rank(culprit, calls, dumped=False, state="T", wchan="do_signal_stop"),
        "mismatch": Rank(culprit, (*calls, Call(world(size), "broadcast", line=11)), len(calls)),
        "all_wait": Rank(culprit, last, len(calls)),
    }[fault]
    ranks = [how if r == culprit else Rank(r, last, len(calls)) for r in range(size)]
    said = []
    for node in range(nodes):
        mine = [Rank(**{**vars(rank), "host": host(node)}) for rank in ranks if rank.rank // per_node == node]
        part = evidence(*mine, world_size=size)
        judgement = judge(part)
        summary = redacted(summarise_node(part, judgement), "functions")
        said.append((report_of(part, judgement), msgspec.msgpack.encode(summary)))
    return tuple(said)


def word_of(nodes: int, culprit: int, fault: Fault, node: int) -> NodeWord:
    """What a node of two ranks says of that scene."""
    summary = msgspec.msgpack.decode(scene(nodes, culprit, fault)[node][1], type=NodeSummary)
    return NodeWord(host(node), (2 * node, 2 * node + 1), summary)


@dataclass
class Story:
    """What befalls a fleet. Times are seconds from the standstill."""

    nodes: int = 4
    per_node: int = 2
    culprit: int = 5
    fault: Fault = "stands"
    sees_at: dict[int, float] = field(default_factory=dict)  # that its ranks stand; 5 s
    looks_take: dict[int, float] = field(default_factory=dict)  # 1 s
    dies: dict[int, float] = field(default_factory=dict)
    dies_having_sent: dict[int, str] = field(default_factory=dict)  # between the send and the note of it
    back_after: dict[int, float] = field(default_factory=dict)  # a daemon that died is started again
    cut: dict[int, tuple[float, float]] = field(default_factory=dict)  # from the meeting place
    stands: dict[int, tuple[float, float]] = field(default_factory=dict)  # a daemon is stopped, and goes on
    away: tuple[float, float] = (0.0, 0.0)  # the meeting place
    wiped: bool = False  # it comes back with nothing
    latency: float = 0.05
    slow: tuple[float, float] = (0.0, 0.0)  # each command takes the place between these
    twice: float = 0.0  # share of requests that are done a second time, some seconds later
    lost: float = 0.0  # share of answers that do not arrive
    skew: dict[int, float] = field(default_factory=dict)  # of a node's wall clock
    past: int = 0  # incidents that the job had before, as all nodes know
    # Nodes that remember the incident of a job before at the same address, told, acknowledged and never closed. None:
    # there was none.
    relaunched: frozenset[int] | None = None
    keys: dict[int, int] = field(default_factory=dict)  # nodes that sign with another key, and which
    mended_at: float = 1e9  # they are given the others' key
    paced: bool = True  # nodes had said while the job moved which ranks they have
    resolved_at: float = 150.0
    unable: frozenset[int] = frozenset()  # nodes that cannot judge what others say: no memory, half an upgrade

    @property
    def innocent(self) -> set[int]:
        """Whom nobody may name."""
        guilty = set() if self.fault == "all_wait" else {self.culprit}
        return set(range(self.nodes * self.per_node)) - guilty

    @property
    def home(self) -> int:
        """The culprit's node."""
        return self.culprit // self.per_node

    def disturbed(self, node: int, first: float, last: float) -> bool:
        """Whether this node could not ask the meeting place all the while."""
        spans = [self.away, self.cut.get(node, (0.0, 0.0))]
        return any(begin < last and first < end for begin, end in spans) or self.lost > 0 or self.wiped


def random_story(rng: random.Random) -> Story:
    """One in which somebody who could tell lives on."""
    nodes, per_node = rng.choice([2, 3, 4, 6]), rng.choice([1, 2, 2, 4])
    faults: list[Fault] = ["stands", "stands", "sleeps", "killed", "stopped", "mismatch", "all_wait"]
    story = Story(nodes, per_node, rng.randrange(nodes * per_node), rng.choice(faults))
    story.sees_at = {node: rng.choice([5.0, rng.uniform(3, 8), rng.uniform(3, 15)]) for node in range(nodes)}
    story.looks_take = {node: rng.choice([0.5, 1.0, rng.uniform(1, 8)]) for node in range(nodes)}
    story.skew = {node: rng.choice([0.0, rng.uniform(-3600, 3600)]) for node in range(nodes)}
    story.latency = rng.choice([0.02, 0.02, 0.3, 1.0])
    story.twice, story.lost = rng.choice([0.0, 0.0, 0.1]), rng.choice([0.0, 0.0, 0.0, 0.05])
    story.past = rng.choice([0, 0, rng.randrange(1, 9)])
    story.paced = rng.random() < 0.8
    survivor = 0 if rng.random() < 0.2 else rng.randrange(nodes)
    for node in range(nodes):
        kind = rng.random()
        if node == survivor:
            continue
        if kind < 0.25:
            story.dies[node] = rng.uniform(0, 60)
        elif kind < 0.35:
            story.dies_having_sent[node] = "told"
        elif kind < 0.45:
            first = rng.uniform(0, 40)
            story.cut[node] = (first, first + rng.uniform(2, 60))
        if rng.random() < 0.5:
            story.back_after[node] = rng.uniform(1, 30)
    if rng.random() < 0.35:
        first = rng.choice([0.0, rng.uniform(0, 40)])
        # For ever only where the node that speaks then lives on: nobody else can tell that it does not.
        story.away = (first, 1e9 if survivor == 0 and rng.random() < 0.5 else first + rng.uniform(3, 60))
        story.wiped = rng.random() < 0.3
    story.resolved_at = rng.uniform(140, 180)
    more = random.Random(repr(story))
    if more.random() < 0.2:
        story.unable = frozenset(node for node in range(nodes) if more.random() < 0.5)
    if more.random() < 0.1:
        story.slow = more.choice([(0.5, 1.0), (1.0, 2.0), (3.0, 4.0)])
    if more.random() < 0.2:
        story.past, story.relaunched = 0, frozenset(node for node in range(nodes) if more.random() < 0.5)
    if more.random() < 0.15:
        each = more.random() < 0.5  # has a key of its own
        story.keys = {node: node if each else 1 for node in range(nodes) if each or more.random() < 0.5}
    return story
