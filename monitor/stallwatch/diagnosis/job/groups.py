"""A process group: its members, told by its kind where nobody wrote them down; its collectives as its members recorded
them, decoded on demand; where two members part; and what NCCL RAS counts of each member's launches."""

import re
import struct
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stallwatch.model.evidence import NodeEvidence, RankEvidence, RasCommunicator
from stallwatch.model.summary import Call, RankSummary, Stream

if TYPE_CHECKING:
    from stallwatch.diagnosis.activity import RankActivity

# Operation, elements by its own rule, dtype, members of a batch one by one: what must agree.
Key = tuple[str, int | None, str, tuple[str, ...]]


_NUMBER = struct.Struct("=H")


class GroupStream(msgspec.Struct, frozen=True, gc=False):
    """One member's stream, with its calls decoded on demand."""

    summary: RankSummary
    stream: Stream

    def call_at(self, seq: int) -> Call | None:
        """The call under a collective's sequence number; None for a hole, or outside of what was recorded."""
        index = seq - self.stream.first_seq
        if index < 0 or index * 2 >= len(self.stream.calls):
            return None
        (value,) = _NUMBER.unpack_from(self.stream.calls, index * 2)
        return self.summary.calls[value] if value < len(self.summary.calls) else None  # NO_CALL, or none that is told

    def keys(self) -> list[Key | None]:
        """What was called under each number from first_seq on; None is a hole."""
        table: dict[int, Key] = {index: key(call) for index, call in enumerate(self.summary.calls)}
        return [table.get(value) for value in array("H", self.stream.calls)]

    def calls_before(self, seq: int) -> list[Call]:
        """The calls under lower numbers, in their order, without holes."""
        values, calls = array("H", self.stream.calls)[: max(seq - self.stream.first_seq, 0)], self.summary.calls
        return [calls[value] for value in values if value < len(calls)]

    def keys_before(self, seq: int) -> list[Key | None]:
        """What must agree of each lower number's call, in order; None is a hole."""
        return self.keys()[: max(seq - self.stream.first_seq, 0)]


def key(call: Call) -> Key:
    """What must agree of a call among the members of its group."""
    return call.operation, call.elements, call.dtype, call.members


def first_difference(members: Mapping[int, GroupStream], tables: dict[tuple[Call, ...], int]) -> int | None:
    """The lowest number under which two members called different things. `tables` is shared between groups."""
    first: int | None = None
    reference = _longest(members)
    if reference is None:
        return None
    theirs: list[Key | None] | None = None
    for member in members.values():
        if member is reference or _same_bytes(reference, member, tables):
            continue
        if theirs is None:
            theirs = reference.keys()
        shift = member.stream.first_seq - reference.stream.first_seq
        for place, what in enumerate(member.keys()):
            other = theirs[place + shift] if 0 <= place + shift < len(theirs) else None
            if what is not None and other is not None and what != other:
                seq = member.stream.first_seq + place
                first = seq if first is None else min(first, seq)
                break
    return first


def _same_bytes(one: GroupStream, other: GroupStream, tables: dict[tuple[Call, ...], int]) -> bool:
    """True when two members' numbers agree on their common range, seen without decoding."""
    if one.summary.calls is not other.summary.calls:  # ranks of nodes that were judged together share what is alike
        left = tables.setdefault(one.summary.calls, len(tables))
        right = tables.setdefault(other.summary.calls, len(tables))
        if left != right:
            return False
    if one.stream.first_seq == other.stream.first_seq and one.stream.calls == other.stream.calls:
        return True
    low = max(one.stream.first_seq, other.stream.first_seq)
    high = min(one.stream.last_seq, other.stream.last_seq)
    if high < low:
        return True
    a, b = 2 * (low - one.stream.first_seq), 2 * (low - other.stream.first_seq)
    length = 2 * (high - low + 1)
    return one.stream.calls[a : a + length] == other.stream.calls[b : b + length]


def _longest(members: Mapping[int, GroupStream]) -> GroupStream | None:
    """The first of those that recorded most; None where there are none."""
    longest, most = None, -1
    for member in members.values():
        if len(member.stream.calls) > most:
            longest, most = member, len(member.stream.calls)
    return longest


def all_alike(members: Mapping[int, GroupStream]) -> bool:
    """True when all members made the same calls from the same lines under the numbers that they share."""
    tables: dict[tuple[Call, ...], int] = {}
    longest = _longest(members)
    return longest is None or all(_same_bytes(longest, member, tables) for member in members.values())


def named_ends(
    members: Sequence[int], places: Mapping[int, int], rank: int, ends: tuple[int, int], own: set[int], *, by_rank: bool
) -> tuple[int, int]:
    """Given members with their places and the ends of a transfer as a rank named them, of which one of `own` is its
    own, return global ranks: they are places in the group, or ranks, as its own end tells. The first member may have
    both alike: then as the group's others do (`by_rank`)."""
    ranks = rank in own and all(end in places for end in ends)
    if ranks and (by_rank or places[rank] not in own or max(ends) >= len(members)):
        return ends
    source, destination = (members[end] if end < len(members) else end for end in ends)
    return source, destination


# Groups of one kind (dp0, dp1, …) whose members nobody wrote down: how they share out the world tells the members.


_LEAST_SISTERS = 3  # with fewer, "all but one are alike" says nothing


def completed(parts: Sequence[tuple[int, ...]], world: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Given the ranks that were seen to use each group, return the members of each; () where that does not follow.

    Equal parts that make up the world are whole. So are they when a single one is smaller by just as many ranks as were
    seen in none.
    """
    users = [rank for part in parts for rank in part]
    left = sorted(set(world) - set(users))
    sizes = sorted(len(part) for part in parts)
    if sizes[-1] < 2 or len(users) + len(left) != len(world):
        return ()
    if not left:
        return tuple(parts) if sizes[0] == sizes[-1] else ()
    if len(parts) < _LEAST_SISTERS or sizes[0] + len(left) != sizes[-1] or sizes[1] != sizes[-1]:
        return ()
    return tuple(part if len(part) == sizes[-1] else tuple(sorted({*part, *left})) for part in parts)


DEFAULT_DESCRIPTIONS = ("default_pg", "", "undefined")


class Group(msgspec.Struct, frozen=True):
    """A process group as all its members together show it; `index` is its place in the case."""

    index: int
    description: str
    ranks: tuple[int, ...]
    members_known: bool  # False: `ranks` are those that used it, there may be others
    backend: str

    @property
    def is_default(self) -> bool:
        """Whether it is the one that init_process_group makes."""
        return self.description in DEFAULT_DESCRIPTIONS


@lru_cache(maxsize=65_536)
def family(description: str) -> str:
    """ "dp0" and "dp1" are of one kind."""
    return re.sub(r"\d+", "#", description)


def members_told(activities: Iterable["RankActivity"], ranks: Iterable[RankEvidence]) -> dict[str, tuple[int, ...]]:
    """Members of groups, by the name of each, as the hooks of those that stand in a call of one tell them: what no
    recorder of gloo writes down. Ranks that do not agree have made their groups in different orders: those are left.
    """
    calls = [(call.name, call.members) for rank in ranks for scene in rank.scenes for call in scene.inside]
    calls += [(activity.call.group_name, activity.call.members or ()) for activity in activities]
    told: dict[str, set[tuple[int, ...]]] = {}
    for name, members in calls:
        if name is not None and members:
            told.setdefault(name, set()).add(members)
    return {name: next(iter(members)) for name, members in told.items() if len(members) == 1}


# NCCL RAS: who has launched less than its peers, or something else. Equal counts prove nothing: what is launched is not
# finished.

Launches = dict[int, tuple[tuple[str, int], ...]]  # of a communicator: each rank's counts by operation


class OtherLaunch(NamedTuple):
    """Ranks that have launched an operation where most of their communicator launched another."""

    ranks: tuple[int, ...]
    found: str  # as NCCL names it
    expected: str


def launches_of(nodes: Iterable[NodeEvidence], pids: Mapping[int, int], world_size: int) -> tuple[Launches, ...]:
    """Given all nodes' reports, the ranks' pids as they know themselves and the size of the world, return what each
    rank has launched, a communicator each.

    A pid that several ranks have (one per node) names nobody. A communicator of another job says nothing: the first job
    of a node has its service, and in containers that share the node's network both may have the same pids.
    """
    owners: dict[int, list[int]] = {}
    for rank, pid in pids.items():
        owners.setdefault(pid, []).append(rank)
    return tuple(
        {
            owners[member.pid][0]: member.counts
            for member in communicator.ranks
            if member.counts and not member.missing and len(owners.get(member.pid, ())) == 1
        }
        for node in nodes
        for communicator in node.ras
        if not _is_of_another_job(communicator, owners, world_size)
    )


def _is_of_another_job(communicator: RasCommunicator, owners: Mapping[int, Sequence[int]], world_size: int) -> bool:
    """Whether it has a process that is none of the job's, all of which are known; or the job's in another order: torch
    sorts the members of each group."""
    all_known = len(owners) == world_size  # each by a pid of its own
    if all_known and any(member.pid not in owners for member in communicator.ranks if not member.missing):
        return True
    members = [
        (member.rank, owners[member.pid][0]) for member in communicator.ranks if len(owners.get(member.pid, ())) == 1
    ]
    if communicator.size == world_size:
        return any(place != rank for place, rank in members)
    return any(one >= other for (_, one), (_, other) in pairwise(members))


def ranks_behind(launches: Iterable[Launches]) -> frozenset[int]:
    """Given what was launched, return ranks that launched fewer collectives than most of a communicator did.

    Fewer than the one that launched most says little: a CPU runs ahead, and a rank that called something extra leads.
    """
    return frozenset(rank for counts in launches for rank in _lagging(_totals(counts)))


def ranks_awaited(launches: Sequence[Launches], among: Collection[int]) -> frozenset[int]:
    """Given what was launched, return those of `among`, compared with each other, that are behind and wait for nobody
    themselves: in no communicator another member of it has launched less than they have, nor are they in one that has
    counted no collective: it carries sends and receives, which RAS does not count."""
    totals = [_totals(counts) for counts in launches]
    waiting = {
        rank
        for counts in totals
        for rank, total in counts.items()
        if total > min(counts.values()) or not any(counts.values())
    }
    compared = ({rank: total for rank, total in counts.items() if rank in among} for counts in totals)
    return frozenset(rank for counts in compared for rank in _lagging(counts)) - waiting


def launched_other(launches: Iterable[Launches]) -> OtherLaunch | None:
    """Given what was launched, return who launched as many collectives as most of its communicator, but other ones."""
    for counts in launches:
        kinds = Counter(counts.values())
        usual, number = max(kinds.items(), key=lambda item: item[1], default=((), 0))
        ranks = tuple(sorted(rank for rank, each in counts.items() if each != usual))
        if not ranks or len(counts) < 3 or 2 * number <= len(counts) or len(kinds) != 2:
            continue
        expected, found = Counter(dict(usual)), Counter(dict(counts[ranks[0]]))
        lacks, extra = expected - found, found - expected
        if len(lacks) == len(extra) == 1 and lacks.total() == extra.total() == 1:
            return OtherLaunch(ranks, next(iter(extra)), next(iter(lacks)))
    return None


def _totals(counts: Launches) -> dict[int, int]:
    return {rank: sum(number for _, number in each) for rank, each in counts.items()}


def _lagging(totals: Mapping[int, int]) -> set[int]:
    if len(totals) < 3:
        return set()
    usual = median_low(totals.values())
    return {rank for rank, total in totals.items() if total < usual}


def place_among_twins(groups: Sequence[Group], group: Group) -> int:
    """Groups of one description and the same members, as far as they were seen, lie side by side in the case, in an
    order that all ranks share."""
    place = 0
    while group.index - place > 0 and are_twins(groups[group.index - place - 1], group):
        place += 1
    return place


def are_twins(one: Group, other: Group) -> bool:
    """Whether two groups have the same description, members and back end, so that only their order tells them apart."""
    return (one.description, one.ranks, one.backend) == (other.description, other.ranks, other.backend)
