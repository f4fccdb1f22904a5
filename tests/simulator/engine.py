"""Runs a program to quiescence under the blocking rules of NCCL or gloo.

NCCL: the host only enqueues; a stream runs operations in order, waits at `wait`, and the host stops at `sync`. gloo:
the host stops in each synchronous operation, P2P included, and P2P is not recorded. A collective completes when every
member runs it and all run the same; P2P when both ends run it (gloo's small sends complete alone).
"""

from collections import defaultdict
from dataclasses import dataclass, field

from tests.simulator.program import WIDTH, Call, Program


@dataclass
class Issued:
    """An operation a host has issued: a flight recorder entry in the making."""

    call: Call
    index: int  # order of issue on the rank
    sequence: int  # k-th of its group, or of the rank's P2P in that group
    depends_on: list["Issued"]
    created: int
    step: int = 0  # of the host when it issued it
    started: bool = False
    completed: bool = False
    pairs: tuple[tuple[str, int, int], ...] = ()  # (direction, peer, k-th of that pair)

    def size_of(self, direction: str, peer: int, k: int) -> int:
        """Elements of that message of a batch."""
        return self.call.sizes[self.pairs.index((direction, peer, k))] if self.call.sizes else self.call.numel


@dataclass
class Rank:
    rank: int
    position: int = 0  # of the host in its program
    steps: int = 0
    issued: list[Issued] = field(default_factory=list)
    barrier: list[Issued] = field(default_factory=list)  # what everything issued later depends on
    unwaited: list[Issued] = field(default_factory=list)
    open: list[Issued] = field(default_factory=list)
    last_of_group: dict[str, Issued] = field(default_factory=dict)
    count_of_group: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    p2p_of_group: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    count_of_pair: dict[tuple[str, str, int], int] = field(default_factory=lambda: defaultdict(int))
    blocked_on: Issued | None = None
    blocked_at: Call | None = None
    ended: str = ""  # "", "finished", "exited", "stopped", "stuck"

    @property
    def issued_collectives(self) -> int:
        return sum(not issued.pairs for issued in self.issued)


class Engine:
    """`run()` moves every rank as far as it can go; what then stands still is the hang."""

    def __init__(self, program: Program, broken: tuple[str, int] | None = None, most_moves: int | None = None) -> None:
        self.program = program
        self.ranks = {rank: Rank(rank) for rank in program.calls}
        self.clock = 0
        self.collectives: dict[tuple[str, int], dict[int, Issued]] = defaultdict(dict)
        self.pairs: dict[tuple[str, int, int, int], dict[str, Issued]] = defaultdict(dict)
        self.broken = broken  # group and number from which on nothing in it completes
        self.moves_left = most_moves  # stop in the middle: a job that is looked at while it moves

    def run(self) -> None:
        moved = True
        while moved and self.moves_left != 0:
            moved = False
            self.clock += self.moves_left is not None  # hosts run side by side, each its next call
            for rank in self.ranks.values():
                moved |= self._host(rank)
            moved |= self._streams()

    def _host(self, rank: Rank) -> bool:
        moved = False
        calls = self.program.calls[rank.rank]
        while not rank.ended:
            if rank.blocked_on is not None:
                if not rank.blocked_on.completed:
                    return moved
                rank.blocked_on = rank.blocked_at = None
                moved = True
            if rank.position >= len(calls):
                rank.ended = "finished"
                return True
            call = calls[rank.position]
            if call.kind == "fault":
                rank.ended = call.operation  # "stuck", "exited", "stopped"
                rank.blocked_at = call
                return True
            if call.kind == "sync":
                if self.program.backend == "nccl":
                    rank.open = [i for i in rank.open if not i.completed]
                    if rank.open:
                        moved |= rank.blocked_at is not call
                        rank.blocked_at = call
                        return moved
                rank.blocked_at = None
            elif call.kind == "step":
                rank.steps += 1
            elif call.kind == "wait":
                if self.program.backend == "gloo":
                    pending = [i for i in rank.unwaited if not i.completed]
                    if pending:
                        rank.blocked_at = call
                        return moved
                    rank.blocked_at = None
                else:
                    rank.barrier = [*rank.barrier, *rank.unwaited]
                rank.unwaited = []
            else:
                self._issue(rank, call)
            rank.position += 1
            moved = True
            if self.moves_left is not None:
                self.moves_left = max(self.moves_left - 1, 0)
                return True
        return moved

    def _issue(self, rank: Rank, call: Call) -> None:
        assert call.group is not None
        self.clock += self.moves_left is None
        name = call.group.name
        depends = [i for i in rank.barrier if not i.completed]
        if name in rank.last_of_group and not rank.last_of_group[name].completed:
            depends.append(rank.last_of_group[name])
        if call.kind == "collective":
            rank.count_of_group[name] += 1
            issued = Issued(call, len(rank.issued), rank.count_of_group[name], depends, self.clock, rank.steps)
            self.collectives[name, issued.sequence][rank.rank] = issued
        else:
            rank.p2p_of_group[name] += 1
            pairs = []
            for direction, peer in call.peers:
                rank.count_of_pair[name, direction, peer] += 1
                pairs.append((direction, peer, rank.count_of_pair[name, direction, peer]))
            number = rank.p2p_of_group[name]
            issued = Issued(call, len(rank.issued), number, depends, self.clock, rank.steps, pairs=tuple(pairs))
            for direction, peer, k in pairs:
                source, target = (rank.rank, peer) if direction == "send" else (peer, rank.rank)
                self.pairs[name, source, target, k][direction] = issued
        rank.issued.append(issued)
        rank.open.append(issued)
        rank.last_of_group[name] = issued
        if call.asynchronous:
            rank.unwaited.append(issued)
        elif self.program.backend == "gloo":
            rank.blocked_on, rank.blocked_at = issued, call
        else:
            rank.barrier = [issued]

    def _streams(self) -> bool:
        moved = False
        for rank in self.ranks.values():
            rank.open = [i for i in rank.open if not i.completed]
            for issued in rank.open:
                if issued.started or rank.ended == "exited":
                    continue
                if rank.ended == "stopped" and self.program.backend == "gloo":
                    continue
                if all(d.completed for d in issued.depends_on):
                    issued.started = moved = True
        for key in [k for k, members in self.collectives.items() if members]:
            name, _ = key
            members = self.collectives[key]
            group = next(iter(members.values())).call.group
            assert group is not None
            if len(members) < len(group.ranks):
                continue
            if self.broken and name == self.broken[0] and key[1] >= self.broken[1]:
                continue
            if all(i.started for i in members.values()) and _compatible([i.call for i in members.values()]):
                for issued in members.values():
                    issued.completed = True
                moved = True
                del self.collectives[key]
        return self._match_pairs() or moved

    def _match_pairs(self) -> bool:
        moved = False
        for rank in self.ranks.values():
            for issued in rank.open:
                if issued.completed or not issued.started or not issued.pairs:
                    continue
                name = issued.call.group.name if issued.call.group else ""
                if all(self._peer_ready(name, rank.rank, pair) for pair in issued.pairs):
                    issued.completed = moved = True
        return moved

    def _peer_ready(self, name: str, rank: int, pair: tuple[str, int, int]) -> bool:
        direction, peer, k = pair
        if self.program.backend == "gloo" and direction == "send":
            return True  # small messages are buffered
        source, target = (rank, peer) if direction == "send" else (peer, rank)
        other = self.pairs[name, source, target, k].get("recv" if direction == "send" else "send")
        own = self.pairs[name, source, target, k][direction]
        # Of a message of another size no end comes.
        way = "recv" if direction == "send" else "send"
        return other is not None and other.started and other.size_of(way, rank, k) == own.size_of(direction, peer, k)

    def hung(self) -> bool:
        return any(rank.ended != "finished" for rank in self.ranks.values())


def _compatible(calls: list[Call]) -> bool:
    first = calls[0]
    return all(
        (c.operation, c.numel, c.members) == (first.operation, first.numel, first.members)
        and WIDTH.get(c.dtype) == WIDTH.get(first.dtype)
        for c in calls
    )
