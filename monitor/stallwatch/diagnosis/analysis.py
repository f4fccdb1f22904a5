"""Everything that the claims look at, worked out once."""

import msgspec

from stallwatch.diagnosis.calls.align import Divergence, find_divergences
from stallwatch.diagnosis.calls.sequences import Departure, find_departures
from stallwatch.diagnosis.gpu import gpus_of_ranks
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.pace import Pace
from stallwatch.diagnosis.waits.graph import Graph, Wait, build
from stallwatch.diagnosis.waits.roots import Roots, find_roots
from stallwatch.model.gpu import Gpu


class Story(msgspec.Struct, frozen=True):
    case: Case
    pace: Pace
    graph: Graph
    roots: Roots
    divergences: tuple[Divergence, ...]
    departures: tuple[Departure, ...]
    gpus: dict[int, Gpu]
    moves: bool | None

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that wait, in what a recorder shows or in what only a stack shows."""
        recorded = {wait.rank for wait in self.graph.waits}
        return tuple(sorted(recorded | set(self.graph.unrecorded) | set(self.graph.perhaps)))

    @property
    def hangs(self) -> bool:
        """True when somebody waits, is not known to have moved on, and the job is not known to move."""
        if self.ends_move:
            return False
        if not self.proven_stuck and (self.moves or (self.graph.moving and not self.graph.waits)):
            return False
        return bool(self.graph.waits or self.graph.unrecorded or self._some_stand_apart)

    @property
    def _some_stand_apart(self) -> bool:
        """Most stand still in what may be a wait, and a few stand still elsewhere."""
        perhaps = set(self.graph.perhaps)
        apart = [
            rank
            for rank in self.case.observed
            if (activity := self.case.activity(rank)).known
            and activity.in_collective is False
            and activity.moving is False
        ]
        return bool(apart) and len(perhaps) > len(apart)

    @property
    def ends_move(self) -> bool:
        """Every chain of waits ends in a call that all have entered and whose turn came since the last look."""
        ends = set(self.roots.closed)
        if not ends or self.roots.absent or self.roots.cycles:
            return False
        came = {wait.rank for wait in self.graph.waits if wait.pending.was_first is False}
        return all(
            wait.rank in came or (bool(peers := self._peers(wait)) and peers <= came)
            for wait in self.graph.waits
            if wait.point in ends
        )

    def _peers(self, wait: Wait) -> set[int]:
        """The other ends of a transfer or a batch; none of a collective."""
        ends = (self.case.ends(wait.rank, wait.pending, transfer) for transfer in wait.pending.transfers)
        return {rank for pair in ends for rank in pair} - {wait.rank}

    @property
    def proven_stuck(self) -> bool:
        return any(wait.stuck for wait in self.graph.waits)

    @property
    def dated(self) -> bool:
        """True when it is known when dumps were taken. torch's own are not dated: it writes them at a time-out."""
        return any(summary.captured_at_ns is not None for summary in self.case.summaries.values())

    @property
    def whole_world_seen(self) -> bool:
        case = self.case
        return case.world_size is not None and not case.unobserved and all(case.recorded(r) for r in case.world)


def tell(case: Case) -> Story:
    pace = Pace(case)
    graph = build(case, pace)
    roots = find_roots(graph)
    structural = bool(roots.cycles or roots.closed or graph.unrecorded or graph.perhaps)
    return Story(
        case=case,
        pace=pace,
        graph=graph,
        roots=roots,
        divergences=find_divergences(case),
        departures=find_departures(case, case.summaries) if structural else (),
        gpus=gpus_of_ranks(case),
        moves=pace.moves(),
    )
