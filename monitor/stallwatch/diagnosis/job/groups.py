"""A process group as its members together show it: its collectives as each recorded them, decoded on demand, and where
two members part."""

import re
import struct
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from stallwatch.model.summary import Call, RankSummary, Stream

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


def is_beside_the_job(members: Mapping[int, GroupStream], summaries: Mapping[int, RankSummary]) -> bool:
    """Given who recorded a group, and what the recorders of all ranks say, return whether it was made without
    torch.distributed, which names all of its own: one rank of the job and a program beside it (weights that go to a
    server of inference). Nobody of the job is in it but that rank. Torch's debug mode makes groups without names on
    every rank: another one, whose dump is whole, has none."""
    alone = next(iter(members.values())) if len(members) == 1 else None
    if alone is None or alone.stream.name or not any(stream.name for stream in alone.summary.streams):
        return False
    read = [one for one in summaries.values() if one.rank != alone.summary.rank and one.streams and not one.cut_short]
    return bool(read) and all(stream.name for one in read for stream in one.streams)


@lru_cache(maxsize=65_536)
def family(description: str) -> str:
    """ "dp0" and "dp1" are of one kind."""
    return re.sub(r"\d+", "#", description)


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
