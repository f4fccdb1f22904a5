"""Everything that the claims look at, worked out once: the case, its graph of waits and their roots, who is absent,
where calls differ, which GPU is whose. `analyze_job` makes it of a case."""

from collections import Counter
from functools import cached_property
from statistics import median

import msgspec

from stallwatch.diagnosis.calls.align import Divergence, find_divergences
from stallwatch.diagnosis.calls.sequences import SequenceBreak, find_departures
from stallwatch.diagnosis.calls.shifted_calls import ShiftedCalls, find_shifted
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.pace import YOUNG_NS, Pace
from stallwatch.diagnosis.logs.blame import Blame, find_blame
from stallwatch.diagnosis.waits.graph import Graph, Wait, build
from stallwatch.diagnosis.waits.roots import Roots, absent_ranks, find_roots
from stallwatch.diagnosis.waits.shared_locks import holders
from stallwatch.diagnosis.waits.unrecorded import apart_from_one_call
from stallwatch.model.gpu import Gpu

# NVML's view of waiting and of not waiting, relative to the other ranks of the case; absolute watts say nothing.
#
# Measured on H200 (facts): a GPU inside a collective reads 100 % busy and draws more than an idle one; a GPU that spins
# in one small kernel reads 100 % busy too, at the power of an idle one. 100 % busy is not progress.


# 125 W against 171 W was measured; a third of a GPU's draw is well outside the spread of equal GPUs (a few percent).
_LOWER_POWER = 0.85


def gpus_of_ranks(case: Case) -> dict[int, Gpu]:
    """Map ranks to the GPU that lists their process, at the last sample; a GPU that no rank's pid is on is left out."""
    found: dict[int, Gpu] = {}
    for node in case.nodes:
        by_pid = {case.activity(rank).pid: rank for rank in node.ranks if case.activity(rank).pid is not None}
        for sample in node.gpus:  # later samples overwrite
            for gpu in sample:
                found |= {by_pid[pid]: gpu for pid in gpu.compute_pids or () if pid in by_pid}
    return found


def gpus_of_their_own(gpus: dict[int, Gpu]) -> dict[int, Gpu]:
    """Those that one rank has alone: what a shared one draws tells of none of its ranks."""
    users = Counter(gpu.uuid for gpu in gpus.values())
    return {rank: gpu for rank, gpu in gpus.items() if users[gpu.uuid] == 1}


def spins_outside_communication(gpu: Gpu, waiting: list[Gpu]) -> bool:
    """True when the GPU is as busy as those that wait in a collective, at clearly lower power."""
    powers = [other.power_watts for other in waiting if other.power_watts is not None and other.is_busy]
    return bool(
        gpu.is_busy and powers and gpu.power_watts is not None and gpu.power_watts < _LOWER_POWER * median(powers)
    )


# What a rank tells of an end of its own, though its words on the wait are lost.
_SAID_MORE = ("exception", "watchdog_end", "recorder_disabled", "failed_stack")


class Analysis(msgspec.Struct, frozen=True, dict=True):
    """Every shared answer about one job, each worked out once: claims read it and change nothing."""

    case: Case
    pace: Pace
    graph: Graph
    roots: Roots
    divergences: tuple[Divergence, ...]
    departures: tuple[SequenceBreak, ...]
    gpus: dict[int, Gpu]
    moves: bool | None

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that wait, in what a recorder shows or in what only a stack shows."""
        return self.graph.waiting

    @cached_property
    def absent(self) -> tuple[int, ...]:
        """Ranks that others wait for and that wait for nobody themselves: they have not entered; ascending."""
        return tuple(rank for rank in self._not_entered if rank not in self.behind_locks)

    @cached_property
    def behind_locks(self) -> dict[int, tuple[int, ...]]:
        """Ranks that have not entered because they wait for a lock, each with those that hold it, or may."""
        return holders(self.case, self._not_entered)

    @cached_property
    def _not_entered(self) -> list[int]:
        graph = self.graph
        found = absent_ranks(self.case, graph, self.roots)
        return found if found or graph.waits else apart_from_one_call(self.case, graph.unrecorded, graph.perhaps)

    @cached_property
    def divergence(self) -> Divergence | None:
        """Where members of a group called different things: the place that somebody still waits in, in a group where
        the waits end, before any other; None where all called the same."""
        ends = {point.group for point in self.roots.closed} | {
            point.group for cycle in self.roots.cycles for point in cycle.points
        }
        return min(
            self.divergences,
            key=lambda d: (not d.open, d.group not in ends, not d.culprits, d.seq, d.group),
            default=None,
        )

    @cached_property
    def shifted(self) -> ShiftedCalls | None:
        """The one member whose calls in a group are one off, if one alone is and others wait for that; else None."""
        return find_shifted(
            self.case,
            self.departures,
            self.divergence,
            [(point.group, point.seq) for point in self.roots.closed if point.seq],
            {(wait.point.group, wait.point.seq) for wait in self.graph.waits},
        )

    @cached_property
    def by_stacks_alone(self) -> dict[tuple[str, int], list[int]]:
        """Where no recorder was read and every rank of the job stands still in communication: the ranks by the line of
        the job's own code, those of most ranks first; empty where that is not so."""
        case, lines = self.case, dict[tuple[str, int], list[int]]()
        if self.graph.waits or case.unobserved or set(self.graph.unrecorded) != set(case.observed):
            return {}
        for rank in case.observed:
            frame = case.activity(rank).place.frame
            if case.recorded(rank) or case.activity(rank).progress.moving is not False or frame is None:
                return {}
            lines.setdefault((frame.file, frame.line), []).append(rank)
        return dict(sorted(lines.items(), key=lambda item: -len(item[1])))

    @property
    def in_the_one_call(self) -> set[int]:
        """Where stacks alone show all ranks in communication: those in the only collective, from the only line; empty
        where there are several."""
        calls = [
            ranks
            for ranks in self.by_stacks_alone.values()
            if not any((a := self.case.activity(r)).call.is_transfer or a.place.in_store_or_init for r in ranks)
        ]
        return set(calls[0]) if len(calls) == 1 else set()

    @cached_property
    def logged_blame(self) -> Blame | None:
        """What explains the waits that NCCL's watchdogs printed, where no recorder or stack shows who waits."""
        if self.graph.waits:
            return None
        case = self.case
        events = case.logs.events
        world = {*case.world, *(event.rank for event in events if event.rank is not None)}
        with_log = [rank for rank, evidence in case.evidence.items() if evidence.log]
        spoke = {event.rank for event in events if event.kind in _SAID_MORE and event.rank is not None}
        return find_blame(case.logs.groups, world, with_log, spoke)

    @property
    def logged_mismatch(self) -> Blame | None:
        """`logged_blame`, if it is that ranks called different things under one number."""
        blame = self.logged_blame
        return blame if blame is not None and blame.kind == "mismatch" else None

    @property
    def hangs(self) -> bool:
        """True when somebody waits, is not known to have moved on, and the job is not known to move."""
        if self.ends_move:
            return False
        if not self.proven_stuck and (self.moves or (self.graph.moving and not self.graph.waits)):
            return False
        if self._may_just_have_begun:
            return False
        return bool(self.graph.waits or self.graph.unrecorded or self._some_stand_apart)

    @property
    def _may_just_have_begun(self) -> bool:
        """No wait is known to be old, and no more than half of the ranks are in one: of an evaluation some come back
        before others. In a hang most of them wait."""
        return self.only_young_waits and 2 * len(self.waiting) <= len(self.case.observed)

    @cached_property
    def only_young_waits(self) -> bool:
        """One look alone shows the waits, none of them known to be longer than those of a job that runs: of some it is
        known that they are not, or there is none in any record."""
        if self.proven_stuck or any(a.progress.moving is False for a in self.case.activities.values()):
            return False
        young = {self._is_young(wait) for wait in self.graph.waits} - {None}
        return young == {True} or (not self.graph.waits and self.case.looks < 2)

    def _is_young(self, wait: Wait) -> bool | None:
        """None where nothing tells its age."""
        captured_ns, created_ns = self.case.summaries[wait.rank].captured_at_ns, wait.pending.created_ns
        if wait.pending.seen_before is not None:
            return False
        if captured_ns is None or created_ns is None:
            return None
        return captured_ns - created_ns < YOUNG_NS

    @property
    def _some_stand_apart(self) -> bool:
        """Most stand still in what may be a wait, and a few stand still elsewhere."""
        perhaps = set(self.graph.perhaps)
        apart = [
            rank
            for rank in self.case.observed
            if (activity := self.case.activity(rank)).known
            and activity.call.in_collective is False
            and activity.progress.moving is False
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
        """True when at least one wait is known to stand still: by two looks, or by what other dumps prove."""
        return any(wait.stuck for wait in self.graph.waits)

    @property
    def dated(self) -> bool:
        """True when it is known when dumps were taken. torch's own are not dated: it writes them at a time-out."""
        return any(summary.captured_at_ns is not None for summary in self.case.summaries.values())

    @property
    def whole_world_seen(self) -> bool:
        """True when the size of the world is known and a dump of every rank was read to its end."""
        case = self.case
        return case.world_size is not None and not case.unobserved and all(case.recorded(r) for r in case.world)


def analyze_job(case: Case) -> Analysis:
    """Given a case, return its analysis. Sequences of calls are compared only where the waits alone do not tell."""
    pace = Pace(case)
    graph = build(case, pace)
    roots = find_roots(graph)
    structural = bool(roots.cycles or roots.closed or graph.unrecorded or graph.perhaps)
    return Analysis(
        case=case,
        pace=pace,
        graph=graph,
        roots=roots,
        divergences=find_divergences(case),
        departures=find_departures(case, case.summaries) if structural else (),
        gpus=gpus_of_ranks(case),
        moves=pace.moves(),
    )
