"""Incidents of a whole fleet with the clock in the test's hand: nodes that die, are late, are cut off and say things
twice, over a meeting place in memory; the policy, the messages' spool and the verdict are the real ones.

    python -m tests.unit.fleet.nodes --incidents 1000
"""

import argparse
import heapq
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

import msgspec

from stallwatch.bundle.report import report_of
from stallwatch.diagnosis import judge
from stallwatch.diagnosis.node_summary import redacted, summarise_node
from stallwatch.fleet.exchange import Seen, Wish, exchange
from stallwatch.fleet.member import SECOND_NS, Local, Member, Position, published
from stallwatch.fleet.node_word import NodeWord, believed, encode_word
from stallwatch.fleet.place import Key
from stallwatch.fleet.verdict import JobVerdict, judge_job
from stallwatch.incidents.delivery_steps import covered, due, verdict_key
from stallwatch.model.incident import Incident, Together, Told
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Report
from stallwatch.outputs.spool import Message, Spool
from tests.builders.job import SLEEPS, Rank, evidence, loop, world
from tests.unit.fleet.memory_place import MemoryPlace

SECRET = b"sixteen bytes or more"
JOB = "train-0a1b2c3d"
_PER_NODE = 2
_TICK = 0.25
_END = 150.0
_RESOLVED = 100.0
_UNDECIDED = 60.0  # tell.undecided_seconds, in a shorter day
_SEEN_HERE = ("rank_exited", "rank_raised", "process_stopped")


@cache
def scene(nodes: int, culprit: int, fault: str) -> tuple[tuple[Report, bytes, bool], ...]:
    """By node: its own report, its summary and whether it has a proof."""
    size = nodes * _PER_NODE
    calls = loop(world(size), 4)
    how = {
        "sleeps": Rank(culprit, calls, frames=SLEEPS),
        "killed": Rank(culprit, calls, dumped=False, state="Z", wchan=None, exit_signal=9),
        "stopped": Rank(culprit, calls, dumped=False, state="T", wchan="do_signal_stop"),
    }[fault]
    ranks = [how if r == culprit else Rank(r, (*calls, calls[0]), len(calls)) for r in range(size)]
    said = []
    for node in range(nodes):
        mine = tuple(range(node * _PER_NODE, (node + 1) * _PER_NODE))
        host = f"node{node}"
        part = evidence(*(Rank(**{**vars(rank), "host": host}) for rank in ranks if rank.rank in mine), world_size=size)
        judgement = judge(part)
        report = report_of(part, judgement)
        verdict = report.verdicts[0]
        proven = bool(verdict.culprits) and verdict.traits.accuses and set(verdict.culprits) <= set(mine)
        proven = proven and (
            verdict.confidence == "certain" or (verdict.confidence == "likely" and verdict.cause in _SEEN_HERE)
        )
        word = NodeWord(host, mine, redacted(summarise_node(part, judgement), "functions"))
        said.append((report, encode_word(word), proven))
    return tuple(said)


@dataclass(frozen=True)
class Sent:
    at: float
    node: int
    step: str
    key: str
    cause: str
    culprits: tuple[int, ...]
    committed: bool = True


@dataclass
class Story:
    """What befalls a fleet. Times are seconds from the standstill."""

    nodes: int = 4
    culprit: int = 5
    fault: str = "sleeps"
    judged_at: dict[int, float] = field(default_factory=dict)
    dies: dict[int, float] = field(default_factory=dict)
    dies_having_sent: dict[int, str] = field(default_factory=dict)  # between the send and the commit
    cut: dict[int, tuple[float, float]] = field(default_factory=dict)
    away: tuple[float, float] = (0.0, 0.0)  # the meeting place
    latency: float = 0.05
    twice: float = 0.0  # share of wishes that arrive twice
    resolved_at: float = _RESOLVED

    @property
    def has_partition(self) -> bool:
        return bool(self.cut) or self.away[1] > self.away[0]


class Node:
    def __init__(self, number: int, story: Story) -> None:
        self.number = number
        self.name = f"node{number}"
        self.ranks = tuple(range(number * _PER_NODE, (number + 1) * _PER_NODE))
        self.member = Member(self.name, 0)
        self.report, self.summary, self.proven = scene(story.nodes, story.culprit, story.fault)[number]
        self.spool = Spool()
        self.sending: list[tuple[float, Message, Incident]] = []
        self.in_flight = False
        self.judging_until: float | None = None
        self.alive = True
        self.position = Position()


class Fleet:
    def __init__(self, story: Story, rng: random.Random) -> None:
        self.story, self.rng = story, rng
        self.now = 0.0
        self.place = MemoryPlace(lambda: self.now)
        self.nodes = [Node(number, story) for number in range(story.nodes)]
        self.sent: list[Sent] = []
        self._answers: list[tuple[float, int, int, float, Wish, Seen]] = []
        self._count = 0
        self._merged: dict[frozenset[str], JobVerdict | None] = {}

    def run(self) -> list[Sent]:
        while self.now < _END:
            self.now += _TICK
            away = self.story.away
            self.place.problem = "connection refused" if away[0] <= self.now < away[1] else ""
            while self._answers and self._answers[0][0] <= self.now:
                _, _, number, asked, wish, seen = heapq.heappop(self._answers)
                self._hear(self.nodes[number], asked, wish, seen)
            for node in self.nodes:
                if node.alive and self.story.dies.get(node.number, _END + 1) <= self.now:
                    node.alive = False
                if node.alive and self.now >= self.story.judged_at.get(node.number, 0.0):
                    self._step(node)
        return self.sent

    def _local(self, node: Node) -> Local:
        delivered = node.spool.delivered(node.name)
        return Local(
            incident_id=node.name,
            job=JOB,
            world_size=self.story.nodes * _PER_NODE,
            ranks=node.ranks,
            judged=1,
            report=node.report,
            summary=node.summary,
            proven=node.proven,
            told=Told({"slack": delivered} if delivered.steps else {}),
            over=self.now >= self.story.resolved_at,
        )

    def _step(self, node: Node) -> None:
        now_ns, local = int(self.now * SECOND_NS), self._local(node)
        self._judge(node, now_ns)
        wish = None if node.in_flight else node.member.wish(now_ns, local)
        if wish is not None:
            self._ask(node, wish)
        node.position = node.member.position(now_ns, local)
        self._tell(node)

    def _ask(self, node: Node, wish: Wish) -> None:
        first, last = self.story.cut.get(node.number, (0.0, 0.0))
        if first <= self.now < last:
            seen = Seen(problem="no route to host")
        else:
            seen = exchange(self.place, SECRET, wish)
            if self.rng.random() < self.story.twice:
                exchange(self.place, SECRET, wish)  # a retransmission: the first answer is the one that is heard
        node.in_flight = True
        self._count += 1
        late = self.now + self.rng.expovariate(1 / self.story.latency)
        heapq.heappush(self._answers, (late, self._count, node.number, self.now, wish, seen))

    def _hear(self, node: Node, asked: float, wish: Wish, seen: Seen) -> None:
        node.in_flight = False
        found = published(seen.report) if seen.report else None
        node.member.heard(int(asked * SECOND_NS), int(self.now * SECOND_NS), wish, seen, found[0] if found else None, 1)
        if found:
            node.member.with_nodes(found[1])

    def _judge(self, node: Node, now_ns: int) -> None:
        if node.judging_until is None:
            if node.member.wants_verdict(now_ns) and not self.place.problem:
                node.judging_until = self.now + 0.5
                key = Key(JOB, node.member.ordinal)
                self._reading = (node.member.puts, self.place.summaries(key), key)
                puts, found, _ = self._reading
                names = frozenset(found)
                if names not in self._merged:
                    size = self.story.nodes * _PER_NODE
                    self._merged[names] = judge_job(believed(found, SECRET, key), size)
                node_verdict = self._merged[names]
                if node_verdict is not None:
                    node.member.merged(msgspec.structs.replace(node_verdict, puts=puts))
        elif self.now >= node.judging_until:
            node.judging_until = None

    def _tell(self, node: Node) -> None:
        for at, message, incident in [one for one in node.sending if one[0] <= self.now]:
            verdict = incident.verdict
            assert verdict is not None
            dies = self.story.dies_having_sent.get(node.number) == message.step
            told = Sent(at, node.number, message.step, incident.shared_id, verdict.cause, verdict.culprits, not dies)
            self.sent.append(told)
            node.spool = node.spool.without([message])
            node.sending = [one for one in node.sending if one[1] is not message]
            if dies:
                node.alive = False
                return
        now = self._incident(node)
        if now is None:
            return
        told_elsewhere = node.position.told.outputs.get("slack") if node.position.told else None
        if told_elsewhere is not None:
            node.spool = node.spool.with_delivered(node.name, told_elsewhere)
        step = due(now, node.spool.told.get(node.name, ()), "warning", node.spool.verdicts.get(node.name, ""))
        if step is not None:
            message = Message(node.name, step, 0, msgspec.Raw(b"{}"))
            node.spool, _ = node.spool.with_message(message, covered(now, step), verdict_key(now))
            message = node.spool.queue[-1]
            node.sending.append((self.now + self.rng.choice([0.25, 0.5, 2.0]), message, now))

    def _incident(self, node: Node) -> Incident | None:
        position, report = node.position, node.position.report or node.report
        verdict = report.verdicts[0]
        over = self.now >= self.story.resolved_at
        if not verdict.traits.accuses and not over and self.now < _UNDECIDED:
            return None  # nobody is told of what is not decided before its patience has ended
        shared = f"{JOB}-{position.ordinal}" if position.ordinal else ""
        return Incident(
            incident_id=f"{JOB}-1",
            job=JobKey("train", "e"),
            node=node.name,
            state="resolved" if over else "open",
            severity="critical",
            opened_wall_ns=0,
            since_ns=0,
            findings=(),
            report=report,
            bundle="",
            together=Together(position.speaks, position.why, shared, position.nodes, position.told),
        )


def random_story(rng: random.Random) -> Story:
    """One in which somebody who could tell lives on."""
    nodes = rng.choice([2, 3, 4, 6])
    culprit = rng.randrange(nodes * _PER_NODE)
    story = Story(nodes, culprit, rng.choice(["sleeps", "sleeps", "killed", "stopped"]))
    story.judged_at = {node: rng.choice([0.0, rng.uniform(0, 3), rng.uniform(0, 8)]) for node in range(nodes)}
    story.latency = rng.choice([0.02, 0.02, 0.3, 1.0])
    story.twice = rng.choice([0.0, 0.0, 0.1])
    survivor = rng.randrange(nodes)
    others = [node for node in range(nodes) if node != survivor]
    for node in others:
        kind = rng.random()
        if kind < 0.25:
            story.dies[node] = rng.uniform(0, 60)
        elif kind < 0.35:
            story.dies_having_sent[node] = "told"
        elif kind < 0.45:
            first = rng.uniform(0, 40)
            story.cut[node] = (first, first + rng.uniform(2, 60))
    if rng.random() < 0.25:
        first = rng.choice([0.0, rng.uniform(0, 20)])
        story.away = (first, first + rng.uniform(5, 50))
    return story


def innocents(story: Story, sent: list[Sent]) -> list[Sent]:
    return [one for one in sent if set(one.culprits) - {story.culprit}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--incidents", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    count: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.incidents):
        rng = random.Random(seed)
        story = random_story(rng)
        sent = Fleet(story, rng).run()
        told = [one for one in sent if one.step == "told"]
        count["incidents"] += 1
        count[f"told {len(told)} times"] += 1
        keys = {one.key for one in told}
        if innocents(story, sent):
            count["wrong culprits"] += 1
            print("WRONG", seed, story, sent, flush=True)
        if not told:
            count["not told"] += 1
            print("NOT TOLD", seed, story, flush=True)
        if len(told) > 1:
            count["two keys"] += len(keys) > 1
            why = "partition" if story.has_partition else ""
            why = "sent, not committed" if not all(one.committed for one in told[:-1]) else why
            why = why or ("death while it was being sent" if story.dies else "UNEXPLAINED")
            count[f"twice: {why}"] += 1
            if why == "UNEXPLAINED" or len(keys) > 1:
                print("TWICE", seed, story, told, flush=True)
        ends = [one for one in sent if one.step == "resolved"]
        count["end told"] += bool(told) and bool(ends)
        count["end told twice"] += len(ends) > 1
    for name, number in sorted(count.items()):
        print(f"{number:6} {name}")
    return 1 if count["wrong culprits"] or count["not told"] else 0


if __name__ == "__main__":
    sys.exit(main())
