"""Who waits for whom: one graph over all process groups, pairs and host threads, its nodes processes.

A node waits at its frontier: the first operation of a lane that has not completed. What is enqueued behind it is not
a wait of its own, and being enqueued is not being inside.
"""

from enum import IntEnum, auto
from typing import NamedTuple

import msgspec

from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import Group, is_beside_the_job
from stallwatch.diagnosis.job.pace import Pace
from stallwatch.diagnosis.waits.unrecorded import may_wait, peers_by_hooks, waits_unrecorded
from stallwatch.model.summary import ANY, Pending, Transfer

_LANES = 16  # threads of one process that are asked for their waits


class Strength(IntEnum):
    """How sure it is that the blocker has not entered, surest first."""

    RECORDED = auto()  # its recorder has no such operation
    HOST = auto()  # no recorder, but its process is seen elsewhere, stopped or gone
    QUEUED = auto()  # enqueued behind another operation that has not completed
    SUPPOSED = auto()  # consistent with all that is known, not shown


class Point(NamedTuple):
    """A place where ranks meet: a collective of a group, or a transfer."""

    group: int
    seq: int  # 0 for transfers
    rank: int = -1  # transfers: whose batch
    record: int = -1


class Blocker(NamedTuple):
    """A rank, by one of its host threads, that a point waits for, and how well that is known."""

    rank: int
    lane: int
    strength: Strength


class Wait(msgspec.Struct, frozen=True, gc=False):
    """One lane of one rank, stuck at its frontier."""

    rank: int
    lane: int
    point: Point
    pending: Pending
    stuck: bool | None  # True: the same at an earlier look, or far older than a step; None: nothing tells


class Graph(msgspec.Struct, frozen=True):
    """Who waits where and for whom, over all groups and transfers; a point is a call in a group, or one transfer."""

    waits: tuple[Wait, ...]
    blockers: dict[Point, tuple[Blocker, ...]]
    unknown: dict[Point, tuple[int, ...]]  # members of which nothing is known that decides
    unrecorded: tuple[int, ...]  # ranks that wait in communication which no recorder shows
    perhaps: tuple[int, ...]  # ranks that stand still in a native call which may be such a wait
    peers: dict[int, int]  # of those ranks, by their own hooks: whom a send or receive of theirs waits for
    moving: tuple[int, ...]  # ranks whose pending operation is known to have moved on

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that wait, in what a recorder shows or in what only a stack shows; ascending."""
        recorded = {wait.rank for wait in self.waits}
        return tuple(sorted(recorded | set(self.unrecorded) | set(self.perhaps)))


def build(case: Case, pace: Pace) -> Graph:
    """Given the case, return the graph of waits that are not known to have ended."""
    waits, moving = _recorded_waits(case, pace)
    frontiers = {(wait.rank, wait.lane): wait for wait in waits}
    blockers: dict[Point, tuple[Blocker, ...]] = {}
    unknown: dict[Point, tuple[int, ...]] = {}
    for point, wait in {wait.point: wait for wait in waits}.items():
        if wait.pending.transfers:
            found, open_ranks = _transfer_blockers(case, wait, frontiers)
        else:
            found, open_ranks = _collective_blockers(case, point, frontiers, moving)
        blockers[point], unknown[point] = tuple(found), tuple(open_ranks)
    # A wait without a name may be of a transfer that no recorder shows, whatever another of its threads waits in.
    waiting_ranks = {wait.rank for wait in waits if wait.lane == 0 or case.activity(wait.rank).call.names_collective}
    unrecorded = tuple(rank for rank in case.observed if waits_unrecorded(case, rank, waiting_ranks))
    perhaps = tuple(rank for rank in case.observed if rank not in unrecorded and may_wait(case, rank, waiting_ranks))
    return Graph(
        tuple(waits), blockers, unknown, unrecorded, perhaps, peers_by_hooks(case, unrecorded), tuple(sorted(moving))
    )


def _recorded_waits(case: Case, pace: Pace) -> tuple[list[Wait], set[int]]:
    """The wait of each lane at its frontier, and the ranks whose frontier is known to have moved on."""
    waits: list[Wait] = []
    moving: set[int] = set()
    for rank, summary in case.summaries.items():
        frontier: dict[int, Pending] = {}
        for pending in summary.pending:
            frontier.setdefault(pending.lane, pending)
        for lane, pending in frontier.items():
            if not pending.launched:
                continue  # its host is still inside the call: it has issued nothing to wait for
            if is_beside_the_job(case.streams[case.group(rank, pending).index], case.summaries):
                continue
            stuck = pace.is_stuck(rank, pending)
            if stuck is False:
                moving.add(rank)
                continue
            group = case.group(rank, pending).index
            point = Point(group, 0, rank, pending.record) if pending.transfers else Point(group, pending.seq)
            waits.append(Wait(rank, lane, point, pending, stuck))
    return waits, moving


def _is_inside_call(case: Case, rank: int, lane: int) -> bool:
    """A group of calls that is open and not closed: recorded, not issued."""
    return any(not pending.launched and pending.lane == lane for pending in case.summaries[rank].pending)


def _collective_blockers(
    case: Case, point: Point, frontiers: dict[tuple[int, int], Wait], moving: set[int]
) -> tuple[list[Blocker], list[int]]:
    group = case.groups[point.group]
    streams = case.streams[point.group]
    blockers: list[Blocker] = []
    unknown: list[int] = []
    for rank in group.ranks:
        member = streams.get(rank)
        if member is None or (member.stream.cut_short and member.stream.last_seq < point.seq):
            _unused(case, group, rank, frontiers, blockers, unknown)
            continue
        lane = member.stream.lane
        if member.stream.completed >= point.seq:
            continue
        lacks = member.stream.last_seq < point.seq
        if case.is_stale(rank, point.group):
            unknown.append(rank)
        elif lacks and rank in case.outdated:
            _unused(case, group, rank, frontiers, blockers, unknown)
        elif lacks:
            blockers.append(Blocker(rank, lane, Strength.RECORDED))
        else:
            front = frontiers.get((rank, lane))
            if front is None and _is_inside_call(case, rank, lane):
                blockers.append(Blocker(rank, lane, Strength.RECORDED))
            elif front is None and rank in moving:
                unknown.append(rank)
            elif front is not None and front.point.group == point.group and front.point.seq > point.seq:
                unknown.append(rank)  # it has entered, and its ring has lost whether that ended
            elif front is not None and front.point != point:
                blockers.append(Blocker(rank, lane, Strength.QUEUED))
    if not group.members_known and len(group.ranks) == 1:
        supposed, dark = _supposed(case, group)
        away = [rank for rank in dark if _is_away(case, rank)]
        if not supposed and len(dark) == len(away) == 1:
            blockers.append(Blocker(away[0], 0, Strength.HOST))  # nobody else is left who could be the other member
        else:
            unknown.extend(dark)
            blockers.extend(Blocker(rank, 0, Strength.SUPPOSED) for rank in supposed if not dark)
    elif not group.members_known and not blockers and not unknown:
        blockers.extend(_on_their_way(case, group, frontiers))
    return blockers, unknown


def _unused(
    case: Case,
    group: Group,
    rank: int,
    frontiers: dict[tuple[int, int], Wait],
    blockers: list[Blocker],
    unknown: list[int],
) -> None:
    """A member that has no such entry of the group: never used it, or there is no dump, or one that broke off or is
    older than the wait."""
    activity = case.activity(rank)
    if case.recorded(rank) and rank not in case.outdated:
        shown = group.backend in case.summaries[rank].backends
        strength = Strength.RECORDED if shown else Strength.SUPPOSED
        blockers.append(Blocker(rank, _own_lane(case, rank, frontiers), strength))
    elif activity.end.gone or activity.process.stopped:
        blockers.append(Blocker(rank, 0, Strength.HOST))
    elif case.launches_behind(rank):
        blockers.append(Blocker(rank, 0, Strength.RECORDED))
    elif case.is_elsewhere(rank) or (group.backend == "gloo" and activity.call.is_transfer):
        blockers.append(Blocker(rank, 0, Strength.HOST))
    else:
        unknown.append(rank)


def _own_lane(case: Case, rank: int, frontiers: dict[tuple[int, int], Wait]) -> int:
    """The lane of the training thread, as far as it shows: of a rank whose stack stands in communication the one that
    waits, if no other does."""
    waiting = [lane for lane in range(_LANES) if (rank, lane) in frontiers]
    inside = case.activity(rank).call.in_collective
    return waiting[0] if len(waiting) == 1 and inside else 0


def _is_away(case: Case, rank: int) -> bool:
    activity = case.activity(rank)
    return activity.end.gone or activity.process.stopped or case.launches_behind(rank) or case.is_elsewhere(rank)


def _supposed(case: Case, group: Group) -> tuple[list[int], list[int]]:
    """A group whose members nobody wrote down has at least two: if only one rank is seen in it, any other may lack,
    but for those that are in a sister group. Return the others that were seen, and those without a dump.

    Where as many sisters lack a second member as there are ranks left, or more, they do not share the world out among
    them: they overlap, as the pairs of a ring do, and nobody is supposed."""
    sisters = case.sisters(group.index)
    taken = {rank for other in sisters for rank in other.ranks}
    others = [rank for rank in case.world if rank not in group.ranks]
    left = [rank for rank in others if rank not in taken]
    alone = [other for other in sisters if not other.members_known and len(other.ranks) == 1]
    if alone and len(left) <= len(alone):
        return [], others
    return [r for r in left if case.recorded(r)], [r for r in left if not case.recorded(r)]


def _on_their_way(case: Case, group: Group, frontiers: dict[tuple[int, int], Wait]) -> list[Blocker]:
    """All that were seen in a group whose members nobody wrote down stand inside. Who stands still in the very function
    that called it on them, or came through it, is a member that has not come to that line. Else the only rank that is
    left may be one."""
    left, dark = _supposed(case, group)
    waiting = {rank for rank, _ in frontiers}
    left = [rank for rank in left if rank not in waiting and case.activity(rank).progress.moving is False]
    inside = [case.activity(rank) for rank in group.ranks]
    callers = {activity.path for activity in inside if activity.path}
    places = {activity.deepest_stack for activity in inside}
    near = [
        rank
        for rank in left
        if (activity := case.activity(rank)).call.in_collective is False
        and activity.deepest_stack not in places
        and any(activity.path[: len(path)] == path for path in callers)
    ]
    if near:
        return [Blocker(rank, 0, Strength.HOST) for rank in near]
    if dark or len(left) != 1 or len(case.world) - len(group.ranks) != 1 or not _is_away(case, left[0]):
        return []
    return [Blocker(left[0], 0, Strength.SUPPOSED)]


def _transfer_blockers(
    case: Case, wait: Wait, frontiers: dict[tuple[int, int], Wait]
) -> tuple[list[Blocker], list[int]]:
    """A batch waits for the other end of each of its transfers."""
    worst: dict[int, Blocker] = {}
    unknown: list[int] = []
    for transfer in wait.pending.transfers:
        ends = case.ends(wait.rank, wait.pending, transfer)
        peer = next((end for end in ends if end != wait.rank), None)
        if peer is None:
            continue
        if peer == ANY:
            others = set(case.group(wait.rank, wait.pending).ranks) - {wait.rank}
            known = {other for other in others if case.recorded(other) or _is_away(case, other)}
            unknown += others - known
            worst = {other: Blocker(other, 0, Strength.SUPPOSED) for other in known} | worst  # any of them would do
            continue
        blocker = _peer(case, wait, transfer, peer, frontiers)
        if blocker is None:
            if not case.recorded(peer) and peer not in unknown:
                unknown.append(peer)
        elif peer not in worst or blocker.strength < worst[peer].strength:
            worst[peer] = blocker
    return [worst[rank] for rank in sorted(worst)], sorted(set(unknown))


def _peer(
    case: Case, wait: Wait, transfer: Transfer, peer: int, frontiers: dict[tuple[int, int], Wait]
) -> Blocker | None:
    """Return the peer as a blocker unless it is inside the same transfer."""
    if not case.recorded(peer):
        return Blocker(peer, 0, Strength.HOST) if _is_away(case, peer) else None
    member = case.streams[wait.point.group].get(peer)
    if member is None:
        return Blocker(peer, _own_lane(case, peer, frontiers), Strength.RECORDED)
    lane = member.stream.lane
    ends = case.ends(wait.rank, wait.pending, transfer)
    mine, theirs = (
        case.transfers.pair(wait.rank, wait.point.group, *ends),
        case.transfers.pair(peer, wait.point.group, *ends),
    )
    if case.transfers.names_no_peer(peer, wait.point.group):
        return Blocker(peer, lane, Strength.SUPPOSED)  # what it issued may be this or another's
    if theirs is None or mine is None:
        return Blocker(peer, lane, Strength.RECORDED)
    place = transfer.ordinal - mine.done  # the place-th pending one of this pair and direction
    if mine.whole and theirs.whole:
        if theirs.done >= transfer.ordinal:
            return None
        place = transfer.ordinal - theirs.done
    elif theirs.pending == 0 and len(wait.pending.transfers) > 1:
        return Blocker(peer, lane, Strength.SUPPOSED)  # cut rings: this member may be the one that is done
    if theirs.pending < place:
        return Blocker(peer, lane, Strength.RECORDED)
    front = frontiers.get((peer, lane))
    if front is None and _is_inside_call(case, peer, lane):
        return Blocker(peer, lane, Strength.RECORDED)
    holder = _holder(case, peer, wait.point.group, ends, place)
    if front is None or holder is None:
        return None  # its pending operation is known to have moved on, or lies beyond what the summary keeps
    inside = holder.record == front.pending.record and holder.launched
    return None if inside else Blocker(peer, lane, Strength.QUEUED)


def _holder(case: Case, rank: int, group: int, ends: tuple[int, int], place: int) -> Pending | None:
    """The pending operation that holds the place-th transfer of this pair and direction."""
    seen = 0
    for pending in case.summaries[rank].pending:
        if case.group_of[rank, pending.stream] != group:
            continue
        for other in pending.transfers:
            if case.ends(rank, pending, other) == ends:
                seen += 1
                if seen == place:
                    return pending
    return None
