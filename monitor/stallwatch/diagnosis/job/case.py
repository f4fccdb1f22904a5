"""The case: all ranks' summaries and activities put together, groups identified across ranks, positions comparable.

Names and ids of process groups are local to a rank: a group is its description and its members.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from stallwatch.diagnosis.job.groups import (
    DEFAULT_DESCRIPTIONS,
    Group,
    GroupStream,
    Launches,
    completed,
    family,
    first_difference,
    launches_of,
    members_told,
    named_ends,
    ranks_behind,
)
from stallwatch.diagnosis.job.leaving import cleared_away, ended_in_vain
from stallwatch.diagnosis.job.untold import doubt, prove, take_back, untold_backends
from stallwatch.diagnosis.recorder import signature
from stallwatch.model.evidence import HeldBack, NodeEvidence, RankEvidence
from stallwatch.model.rendezvous import NO_MEETING, Rendezvous
from stallwatch.model.summary import ANY, Call, PairCount, Pending, RankSummary, Stream, Transfer

if TYPE_CHECKING:
    from stallwatch.diagnosis.activity import RankActivity
    from stallwatch.diagnosis.logs import LogReading

_DEFAULT_NAMES = ("", "0")


def outdated_ranks(summaries: Iterable[RankSummary]) -> frozenset[int]:
    """Return the ranks whose dump was taken before another rank's pending call was even made.

    Only a dump taken earlier than that other rank's can be: by its look, or by the wall clock, which the hosts of a job
    keep alike to far less than a hang lasts.
    """
    dumped = [summary for summary in summaries if summary.look]
    last_look = max((summary.look for summary in dumped), default=0)
    fresh = any(s.look == last_look and s.pending and s.pending[0].seen_before is False for s in dumped)
    # By time of capture: the newest pending call that was seen from there on.
    dated = sorted((s.captured_at_ns, _newest_ns(s)) for s in dumped if s.captured_at_ns is not None)
    times = [at_ns for at_ns, _ in dated]
    newest = list(accumulate((began_ns for _, began_ns in reversed(dated)), max))[::-1]

    def precedes_a_wait(at_ns: int | None) -> bool:
        later = len(times) if at_ns is None else bisect_right(times, at_ns)
        return at_ns is not None and later < len(times) and newest[later] > at_ns

    return frozenset(s.rank for s in dumped if (fresh and s.look < last_look) or precedes_a_wait(s.captured_at_ns))


def _newest_ns(summary: RankSummary) -> int:
    return max((p.created_ns for p in summary.pending if p.created_ns is not None), default=0)


class Case:
    """Read-only after construction. `streams[group][rank]` is what the rank recorded of the group."""

    def __init__(
        self,
        summaries: Sequence[RankSummary],
        activities: Mapping[int, "RankActivity"],
        world_size: int | None,
        nodes: Sequence[NodeEvidence] = (),
        evidence: Mapping[int, RankEvidence] | None = None,
        looks: int = 1,
        logs: "LogReading | None" = None,
        meeting: Rendezvous = NO_MEETING,
        held_back: HeldBack | None = None,
        went_on: Sequence[int] = (),
    ) -> None:
        self.summaries = {summary.rank: summary for summary in sorted(summaries, key=lambda s: s.rank)}
        self.activities = dict(sorted(activities.items()))
        self.observed = tuple(sorted({*self.summaries, *self.activities}))
        self.world_size = world_size
        self.nodes = tuple(sorted(nodes, key=lambda node: node.host))
        self.evidence = dict(evidence or {})
        self.looks = looks
        self.meeting = meeting
        self.held_back = held_back
        self.went_on = frozenset(went_on)
        self._logs = logs
        self.groups: list[Group] = []
        self.streams: list[dict[int, GroupStream]] = []
        self.group_of: dict[tuple[int, int], int] = {}
        self._set_of_tuple: dict[int, int] = {}
        self._set_numbers: dict[tuple[int, ...], int] = {}
        self._kept: list[tuple[int, ...]] = []  # an id names a tuple only while the tuple lives
        self._world = tuple(range(world_size)) if world_size else self.observed
        self._identify()
        self._complete_families()
        take_back(self)
        in_transfers = [rank for rank in self.summaries if self.activity(rank).call.is_transfer]
        # Back ends whose recorders tell of no end.
        self.untold = untold_backends(self.summaries, self.streams, in_transfers)
        doubt(self)
        self._sizes = self._sizes_of_families()
        self._places = {g.index: {member: place for place, member in enumerate(g.ranks)} for g in self.groups}
        self._by_rank = self._groups_that_name_ranks()
        self._pairs = self._pairs_by_ends()
        prove(self)
        self._waiting_stacks = {
            self.activity(rank).place.stack for rank, summary in self.summaries.items() if summary.pending
        }
        # As NCCL RAS counts them.
        self.launches: tuple[Launches, ...] = launches_of(self.nodes, self._own_pids(), len(self._world))
        self._behind = ranks_behind(self.launches)
        tables: dict[tuple[Call, ...], int] = {}
        self._first_differences = [first_difference(members, tables) for members in self.streams]
        self.outdated = outdated_ranks(self.summaries.values())
        self._proven: list[int] = [self._proven_seq(index) for index in range(len(self.groups))]
        self.stale: frozenset[tuple[int, int]] = frozenset(  # by rank and group
            (rank, index)
            for index, proven in enumerate(self._proven)
            for rank, member in self.streams[index].items()
            if not member.stream.cut_short and member.stream.last_seq < proven
        )

    def _sizes_of_families(self) -> dict[str, set[int]]:
        """How many members the groups of each kind have, where they are known."""
        sizes: dict[str, set[int]] = {}
        for group in self.groups:
            if group.members_known:
                sizes.setdefault(family(group.description), set()).add(len(group.ranks))
        return sizes

    def _groups_that_name_ranks(self) -> set[int]:
        """Groups in which a member's transfers name it by its rank in the job, not by its place."""
        found = set()
        for rank, group, pair in self._recorded_pairs():
            if pair.outgoing is not None:
                own_end = pair.source if pair.outgoing else pair.destination
                if own_end == rank and self._places[group.index].get(rank, rank) != rank:
                    found.add(group.index)
        return found

    def _pairs_by_ends(self) -> dict[tuple[int, int, int, int], PairCount]:
        """By rank, group, source and destination as ranks of the job."""
        pairs: dict[tuple[int, int, int, int], PairCount] = {}
        for rank, group, pair in self._recorded_pairs():
            ends = self.global_ends(group, rank, pair.source, pair.destination, pair.outgoing)
            pairs[(rank, group.index, *ends)] = pair
        return pairs

    def _own_pids(self) -> dict[int, int]:
        """As each process knows itself, which is what NCCL reports; in a container it is not ours."""
        own = {
            rank: look.namespace_pid
            for rank, evidence in self.evidence.items()
            for look in evidence.processes
            if look.namespace_pid is not None
        }
        return {**self.pids, **own}

    @property
    def pids(self) -> dict[int, int]:
        """Pids by rank as the node's own namespace has them; a rank of which none is known is left out."""
        return {rank: activity.pid for rank, activity in self.activities.items() if activity.pid is not None}

    @property
    def world(self) -> tuple[int, ...]:
        """All ranks of the job, ascending: 0 to the world's size, or those that were seen where no size is known."""
        return self._world

    def sisters(self, index: int) -> list[Group]:
        """Given a group, return the others of its kind and back end, whatever they have of members."""
        mine = self.groups[index]
        kind = family(mine.description), mine.backend
        return [one for one in self.groups if one.index != index and (family(one.description), one.backend) == kind]

    @property
    def unobserved(self) -> tuple[int, ...]:
        """Ranks of the world of which there is no evidence at all."""
        known = set(self.observed)
        return tuple(rank for rank in self.world if rank not in known)

    @cached_property
    def ended_at_the_start(self) -> frozenset[int]:
        """Ranks whose time-out ended them where they waited at the start of the job, for one that was elsewhere."""
        return ended_in_vain(self)

    @cached_property
    def cleared_away(self) -> frozenset[int]:
        """Ranks that lived and did not come, and that their launcher ended when others had waited in vain."""
        return cleared_away(self)

    @cached_property
    def logs(self) -> "LogReading":
        """What the job's logs tell; nothing where none was read."""
        from stallwatch.diagnosis.logs.log_reading import NOTHING_READ  # of a case of recorders alone nobody asks

        return NOTHING_READ if self._logs is None else self._logs

    def activity(self, rank: int) -> "RankActivity":
        """What a rank does; one that says nothing where it was not read."""
        from stallwatch.diagnosis.activity import RankActivity  # nor of that

        return self.activities.get(rank) or RankActivity(rank=rank)

    def is_elsewhere(self, rank: int) -> bool:
        """True when a stack shows the rank outside of communication, of waiting for its GPU, and of the very place
        where ranks stand that are known to wait; or when it keeps the GIL, which torch's communication gives back, or
        is another program."""
        activity = self.activity(rank)
        if activity.process.replaced or (activity.place.where == "gil" and not activity.place.stack):
            return True
        outside = bool(activity.place.stack) and activity.call.in_collective is False and not activity.place.gpu_sync
        return outside and activity.place.stack not in self._waiting_stacks

    def recorded(self, rank: int) -> bool:
        """True when a dump of the rank was read, and to its end."""
        summary = self.summaries.get(rank)
        return summary is not None and summary.look > 0 and not summary.cut_short

    def group(self, rank: int, pending: Pending) -> Group:
        """The group that a pending operation of a rank belongs to."""
        return self.groups[self.group_of[rank, pending.stream]]

    def call(self, rank: int, pending: Pending) -> Call | None:
        """What a pending operation calls; None where its entry was lost."""
        calls = self.summaries[rank].calls
        return calls[pending.call] if pending.call < len(calls) else None

    def proven_seq(self, group: int) -> int:
        """Every member has entered up to this number: a synchronising collective of it has completed somewhere."""
        return self._proven[group]

    def first_difference(self, group: int) -> int | None:
        """The lowest number under which two members of the group called different things."""
        return self._first_differences[group]

    def is_stale(self, rank: int, group: int) -> bool:
        """True when the rank's dump is older than what others prove it has entered: the job moved between dumps."""
        return (rank, group) in self.stale

    def _recorded_pairs(self) -> list[tuple[int, Group, PairCount]]:
        of_ranks = self.summaries.items()
        return [(rank, self.groups[self.group_of[rank, p.stream]], p) for rank, s in of_ranks for p in s.pairs]

    def global_ends(
        self, group: Group, rank: int, source: int, destination: int, outgoing: bool | None
    ) -> tuple[int, int]:
        """Given the ends of a transfer as a rank named them, return global ranks. torch names ranks of the group; a
        wrapper or another back end may name global ones: the rank's own end tells which."""
        if ANY in (source, destination):
            return (rank, ANY) if outgoing else (ANY, rank)
        own = {source, destination} if outgoing is None else {source if outgoing else destination}
        places, by_rank = self._places[group.index], group.index in self._by_rank
        return named_ends(group.ranks, places, rank, (source, destination), own, by_rank=by_rank)

    def usual_size(self, group: Group) -> int:
        """How many members a group has; of one whose members nobody wrote down, as many as its sisters; 0: unknown."""
        if group.members_known:
            return len(group.ranks)
        sizes = self._sizes.get(family(group.description), set())
        return next(iter(sizes)) if len(sizes) == 1 else 0

    def pair(self, rank: int, group: int, source: int, destination: int) -> PairCount | None:
        """How often the rank recorded transfers of this direction between these two global ranks in the group."""
        return self._pairs.get((rank, group, source, destination))

    def names_no_peer(self, rank: int, group: int) -> bool:
        """True when the rank recorded transfers of the group that do not say with whom."""
        return (rank, group, ANY, rank) in self._pairs or (rank, group, rank, ANY) in self._pairs

    def ends(self, rank: int, pending: Pending, transfer: Transfer) -> tuple[int, int]:
        """Source and destination of a transfer that a rank recorded, as global ranks."""
        group = self.group(rank, pending)
        return self.global_ends(group, rank, transfer.source, transfer.destination, transfer.outgoing)

    def needed(self, rank: int, pending: Pending) -> set[int]:
        """Whom an operation that a rank recorded needs, itself too: the ends of its transfers, or all members."""
        ends = [self.ends(rank, pending, transfer) for transfer in pending.transfers]
        return {end for pair in ends for end in pair} or set(self.group(rank, pending).ranks)

    def launches_behind(self, rank: int) -> bool:
        """True when NCCL RAS counts fewer launches on this rank than on others of a communicator."""
        return rank in self._behind

    def _identify(self) -> None:
        known: dict[tuple[str, int, str], dict[int, list[int]]] = {}
        unknown: dict[tuple[str, str, str], dict[int, list[int]]] = {}
        told = members_told(self.activities.values(), self.evidence.values())
        for rank, summary in self.summaries.items():
            for index, stream in enumerate(summary.streams):
                ranks = stream.ranks or self._default_ranks(stream) or told.get(stream.name, ())
                if ranks:
                    bucket = known.setdefault((stream.description, self._member_set(ranks), stream.backend), {})
                    bucket.setdefault(rank, []).append(index)
                else:
                    unknown.setdefault((stream.description, stream.name, stream.backend), {}).setdefault(
                        rank, []
                    ).append(index)
        sets = {number: ranks for ranks, number in self._set_numbers.items()}
        named = [
            (description, sets[number], backend, members) for (description, number, backend), members in known.items()
        ]
        for description, ranks, backend, members in sorted(named, key=lambda item: item[:3]):
            for part in self._by_name(members, counted=description in DEFAULT_DESCRIPTIONS):
                self._add(description, ranks, True, backend, part)
        for (description, _, backend), members in sorted(unknown.items()):
            part = {rank: indexes[-1] for rank, indexes in members.items()}
            hint = self._size_hint(part)
            if hint is not None and self.world_size == hint:
                self._add(description, self.world, True, backend, part)
            else:
                self._add(description, tuple(sorted(part)), hint == len(part), backend, part)

    def _member_set(self, ranks: tuple[int, ...]) -> int:
        """Number a set of members; ranks of one job share the tuple, so that it is hashed once."""
        number = self._set_of_tuple.get(id(ranks))
        if number is None:
            number = self._set_of_tuple[id(ranks)] = self._set_numbers.setdefault(ranks, len(self._set_numbers))
            self._kept.append(ranks)
        return number

    def _complete_families(self) -> None:
        """Groups of one kind tell each other's members where nobody wrote them down."""
        families: dict[tuple[str, str], list[int]] = {}
        for group in self.groups:
            if not (group.members_known and group.ranks == self.world):
                families.setdefault((family(group.description), group.backend), []).append(group.index)
        for indexes in families.values():
            if all(self.groups[index].members_known for index in indexes):
                continue
            whole = completed([self.groups[index].ranks for index in indexes], self.world)
            for index, ranks in zip(indexes, whole, strict=False):
                self.groups[index] = msgspec.structs.replace(self.groups[index], ranks=ranks, members_known=True)

    def _default_ranks(self, stream: Stream) -> tuple[int, ...]:
        default = stream.name in _DEFAULT_NAMES and stream.description in DEFAULT_DESCRIPTIONS
        return self.world if default and self.world_size else ()

    def _size_hint(self, members: Mapping[int, int]) -> int | None:
        hints = [self.summaries[rank].streams[index].size_hint for rank, index in members.items()]
        return max((hint for hint in hints if hint is not None), default=None)

    def _by_name(self, members: Mapping[int, list[int]], *, counted: bool) -> list[dict[int, int]]:
        """Several groups with one description and the same members: told apart by name where names are shared,
        else by the order in which each rank made them. `counted`: torch numbers those without a description of their
        own as they are made, by every rank alike, so that two numbers are two groups though no rank has used both."""
        names: dict[str, dict[int, int]] = {}
        for rank, indexes in members.items():
            for index in indexes:
                names.setdefault(self.summaries[rank].streams[index].name, {})[rank] = index
        if all(len(indexes) == 1 for indexes in members.values()):
            if counted and all(map(str.isdecimal, names)):
                return [names[name] for name in sorted(names, key=int)]
            return [{rank: indexes[0] for rank, indexes in members.items()}]
        if any(len(part) > 1 for part in names.values()) or len(members) == 1:
            return [names[name] for name in sorted(names)]
        ordered = {
            rank: sorted(indexes, key=lambda i, rank=rank: _natural(self.summaries[rank].streams[i].name))  # type: ignore[misc]
            for rank, indexes in members.items()
        }
        longest = max(len(indexes) for indexes in ordered.values())
        return [
            {rank: indexes[place] for rank, indexes in ordered.items() if place < len(indexes)}
            for place in range(longest)
        ]

    def _add(
        self, description: str, ranks: tuple[int, ...], members_known: bool, backend: str, part: Mapping[int, int]
    ) -> None:
        index = len(self.groups)
        self.groups.append(Group(index, description, ranks, members_known, backend))
        self.streams.append(
            {
                rank: GroupStream(self.summaries[rank], self.summaries[rank].streams[i])
                for rank, i in sorted(part.items())
            }
        )
        for rank, stream in part.items():
            self.group_of[rank, stream] = index

    def _proven_seq(self, group: int) -> int:
        proven = 0
        for member in self.streams[group].values():
            seq = member.stream.completed
            parted = self._first_differences[group]
            if parted is not None:
                seq = min(seq, parted - 1)  # wrongly paired calls may end on one side alone
            call = member.call_at(seq) if seq > proven else None
            if call is not None and signature.is_synchronising(call.operation):
                proven = seq
        return proven


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)
