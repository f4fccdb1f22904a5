"""The two ends of each recorded send and receive as ranks of the job, and how often each rank recorded it.

torch names ends by their place in the group; a wrapper or another back end may name ranks of the job.
"""

from collections.abc import Mapping, Sequence

from stallwatch.diagnosis.job.groups import Group
from stallwatch.model.summary import ANY, PairCount, RankSummary


class TransferEnds:
    """Of all ranks' summaries: read-only after construction."""

    def __init__(
        self, summaries: Mapping[int, RankSummary], groups: Sequence[Group], group_of: Mapping[tuple[int, int], int]
    ) -> None:
        """`group_of`: the place in `groups` of a rank's stream, by rank and the stream's index."""
        self._places = {g.index: {member: place for place, member in enumerate(g.ranks)} for g in groups}
        recorded = [(rank, groups[group_of[rank, p.stream]], p) for rank, s in summaries.items() for p in s.pairs]
        # Groups in which a member's transfers name it by its rank in the job, not by its place.
        self._by_rank = {group.index for rank, group, pair in recorded if self._names_rank(group, rank, pair)}
        # By rank, group, source and destination as ranks of the job.
        self._pairs: dict[tuple[int, int, int, int], PairCount] = {}
        for rank, group, pair in recorded:
            ends = self.global_ends(group, rank, pair.source, pair.destination, pair.outgoing)
            self._pairs[(rank, group.index, *ends)] = pair

    def _names_rank(self, group: Group, rank: int, pair: PairCount) -> bool:
        if pair.outgoing is None:
            return False
        own_end = pair.source if pair.outgoing else pair.destination
        return own_end == rank and self._places[group.index].get(rank, rank) != rank

    def global_ends(
        self, group: Group, rank: int, source: int, destination: int, outgoing: bool | None
    ) -> tuple[int, int]:
        """Given the ends of a transfer as a rank named them, return ranks of the job. The rank's own end tells whether
        they are places in the group; `outgoing` is None where it is not known which of the two is its own."""
        if ANY in (source, destination):
            return (rank, ANY) if outgoing else (ANY, rank)
        own = {source, destination} if outgoing is None else {source if outgoing else destination}
        places, by_rank = self._places[group.index], group.index in self._by_rank
        return named_ends(group.ranks, places, rank, (source, destination), own, by_rank=by_rank)

    def pair(self, rank: int, group: int, source: int, destination: int) -> PairCount | None:
        """How often the rank recorded transfers of this direction between these two global ranks in the group."""
        return self._pairs.get((rank, group, source, destination))

    def names_no_peer(self, rank: int, group: int) -> bool:
        """True when the rank recorded transfers of the group that do not say with whom."""
        return (rank, group, ANY, rank) in self._pairs or (rank, group, rank, ANY) in self._pairs


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
