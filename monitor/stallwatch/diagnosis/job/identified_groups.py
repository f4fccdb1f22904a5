"""Process groups identified across ranks, and their members.

Names and ids of process groups are local to a rank: a group is its description and its members. Where nobody wrote
down the members, hooks may tell them, or groups of one kind (dp0, dp1, …) do by how they share out the world.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from stallwatch.diagnosis.job.groups import DEFAULT_DESCRIPTIONS, Group, GroupStream, family
from stallwatch.model.evidence import RankEvidence
from stallwatch.model.summary import RankSummary, Stream

if TYPE_CHECKING:
    from stallwatch.diagnosis.activity import RankActivity

_LEAST_SISTERS = 3  # with fewer, "all but one are alike" says nothing


class IdentifiedGroups:
    """The groups of a job, each with the streams of its members."""

    def __init__(
        self,
        summaries: Mapping[int, RankSummary],
        world_size: int | None,
        world: tuple[int, ...],
        told: Mapping[str, tuple[int, ...]],
    ) -> None:
        """`world`: all ranks of the job, those that were seen where its size is not known. `told`: `members_told`."""
        self.groups: list[Group] = []
        self.streams: list[dict[int, GroupStream]] = []  # by group, then rank: what the rank recorded of it
        self.group_of: dict[tuple[int, int], int] = {}  # by rank and the index of its stream
        self._summaries = summaries
        self._world_size = world_size
        self._world = world
        self._set_of_tuple: dict[int, int] = {}
        self._set_numbers: dict[tuple[int, ...], int] = {}
        self._kept: list[tuple[int, ...]] = []  # an id names a tuple only while the tuple lives
        self._identify(told)
        self._complete_families()

    def _identify(self, told: Mapping[str, tuple[int, ...]]) -> None:
        known: dict[tuple[str, int, str], dict[int, list[int]]] = {}
        unknown: dict[tuple[str, str, str], dict[int, list[int]]] = {}
        default = _default_members(self._summaries, self._world if self._world_size else (), told)
        for rank, summary in self._summaries.items():
            for index, stream in enumerate(summary.streams):
                is_default = _is_default(stream)
                ranks = default if is_default and stream.backend == "gloo" else stream.ranks
                ranks = ranks or (default if is_default else ()) or told.get(stream.name, ())
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
            if hint is not None and self._world_size == hint:
                self._add(description, self._world, True, backend, part)
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
            if not (group.members_known and group.ranks == self._world):
                families.setdefault((family(group.description), group.backend), []).append(group.index)
        for indexes in families.values():
            if all(self.groups[index].members_known for index in indexes):
                continue
            whole = _completed([self.groups[index].ranks for index in indexes], self._world)
            for index, ranks in zip(indexes, whole, strict=False):
                self.groups[index] = msgspec.structs.replace(self.groups[index], ranks=ranks, members_known=True)

    def _size_hint(self, members: Mapping[int, int]) -> int | None:
        hints = [self._summaries[rank].streams[index].size_hint for rank, index in members.items()]
        return max((hint for hint in hints if hint is not None), default=None)

    def _by_name(self, members: Mapping[int, list[int]], *, counted: bool) -> list[dict[int, int]]:
        """Several groups with one description and the same members: told apart by name where names are shared,
        else by the order in which each rank made them. `counted`: torch numbers those without a description of their
        own as they are made, by every rank alike, so that two numbers are two groups though no rank has used both."""
        names: dict[str, dict[int, int]] = {}
        for rank, indexes in members.items():
            for index in indexes:
                names.setdefault(self._summaries[rank].streams[index].name, {})[rank] = index
        if all(len(indexes) == 1 for indexes in members.values()):
            if counted and all(map(str.isdecimal, names)):
                return [names[name] for name in sorted(names, key=int)]
            return [{rank: indexes[0] for rank, indexes in members.items()}]
        if any(len(part) > 1 for part in names.values()) or len(members) == 1:
            return [names[name] for name in sorted(names)]
        ordered = {
            rank: sorted(indexes, key=lambda i, rank=rank: _natural(self._summaries[rank].streams[i].name))  # type: ignore[misc]
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
                rank: GroupStream(self._summaries[rank], self._summaries[rank].streams[i])
                for rank, i in sorted(part.items())
            }
        )
        for rank, stream in part.items():
            self.group_of[rank, stream] = index


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _is_default(stream: Stream) -> bool:
    """Whether it is of the group that init_process_group makes, or that torch's debug mode puts beside it."""
    return stream.name in ("", "0") and stream.description in DEFAULT_DESCRIPTIONS


def _default_members(
    summaries: Mapping[int, RankSummary], world: tuple[int, ...], told: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """Given all ranks' streams, the world where its size is known, and what hooks tell of groups, return the members of
    gloo's default group, () where nothing tells. A dump's may be those of a smaller group that its rank has made later
    and not used yet: the largest counts, if all that use the default group are in it."""
    users: list[int] = []
    most: tuple[int, ...] = ()
    for rank, summary in summaries.items():
        for stream in summary.streams:
            if _is_default(stream):
                users.append(rank)
                most = stream.ranks if stream.backend == "gloo" and len(stream.ranks) > len(most) else most
    return told.get("0") or (most if set(users) <= set(most) else ()) or world


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


def _completed(parts: Sequence[tuple[int, ...]], world: Sequence[int]) -> tuple[tuple[int, ...], ...]:
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
