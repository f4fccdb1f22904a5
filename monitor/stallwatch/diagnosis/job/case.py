"""The case: all ranks' summaries and activities put together, groups identified across ranks, positions comparable."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from stallwatch.diagnosis.job.dump_age import outdated_ranks, proven_seq
from stallwatch.diagnosis.job.groups import Group, family, first_difference
from stallwatch.diagnosis.job.identified_groups import IdentifiedGroups, members_told
from stallwatch.diagnosis.job.leaving import cleared_away, ended_in_vain
from stallwatch.diagnosis.job.ras_launches import Launches, launches_of, ranks_behind
from stallwatch.diagnosis.job.transfer_ends import TransferEnds
from stallwatch.diagnosis.job.untold import doubt, prove, take_back, untold_backends
from stallwatch.model.evidence import HeldBack, NodeEvidence, RankEvidence
from stallwatch.model.rendezvous import NO_MEETING, Rendezvous
from stallwatch.model.summary import Call, Pending, RankSummary, Transfer

if TYPE_CHECKING:
    from stallwatch.diagnosis.activity import RankActivity
    from stallwatch.diagnosis.logs import LogReading


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
        self._world = tuple(range(world_size)) if world_size else self.observed
        told = members_told(self.activities.values(), self.evidence.values())
        found = IdentifiedGroups(self.summaries, world_size, self._world, told)
        self.groups, self.streams, self.group_of = found.groups, found.streams, found.group_of
        take_back(self)
        in_transfers = [rank for rank in self.summaries if self.activity(rank).call.is_transfer]
        # Back ends whose recorders tell of no end.
        self.untold = untold_backends(self.summaries, self.streams, in_transfers)
        doubt(self)
        self._sizes = self._sizes_of_families()
        self.transfers = TransferEnds(self.summaries, self.groups, self.group_of)
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
        self._proven = [proven_seq(*each) for each in zip(self.streams, self._first_differences, strict=True)]
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

    def usual_size(self, group: Group) -> int:
        """How many members a group has; of one whose members nobody wrote down, as many as its sisters; 0: unknown."""
        if group.members_known:
            return len(group.ranks)
        sizes = self._sizes.get(family(group.description), set())
        return next(iter(sizes)) if len(sizes) == 1 else 0

    def ends(self, rank: int, pending: Pending, transfer: Transfer) -> tuple[int, int]:
        """Source and destination of a transfer that a rank recorded, as global ranks."""
        group = self.group(rank, pending)
        return self.transfers.global_ends(group, rank, transfer.source, transfer.destination, transfer.outgoing)

    def needed(self, rank: int, pending: Pending) -> set[int]:
        """Whom an operation that a rank recorded needs, itself too: the ends of its transfers, or all members."""
        ends = [self.ends(rank, pending, transfer) for transfer in pending.transfers]
        return {end for pair in ends for end in pair} or set(self.group(rank, pending).ranks)

    def launches_behind(self, rank: int) -> bool:
        """True when NCCL RAS counts fewer launches on this rank than on others of a communicator."""
        return rank in self._behind
