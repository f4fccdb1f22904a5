"""Stuck or moving: by two looks, by what dumps taken apart prove about each other, by age against the job's step."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from stallwatch.diagnosis import signature
from stallwatch.diagnosis.activity import Activity
from stallwatch.diagnosis.case import Case
from stallwatch.model.summary import Pending
from stallwatch.progress.job import many_move

# One look at a wait younger than this many steps is a look at a job that may be moving.
_STEPS_UNTIL_SUSPECT = 3
# A wait older than this many steps, and than the floor below, is not a step any more.
_STEPS_UNTIL_STUCK = 20
_FLOOR_NS = 1_000_000_000
_MIN_ARRIVALS = 8
# A rank holds the job back if it comes last nearly always, by a good part of a step.
_LAST_SHARE = 0.75
_LATE_SHARE_OF_STEP = 0.25
_LATE_FLOOR_NS = 10_000_000  # less is scheduling noise of the host


class Slowness(NamedTuple):
    rank: int
    late_seconds: float  # median, behind the median of the others
    step_seconds: float
    share_last: float
    group: int
    all_seen: bool  # False: a member without a dump may come later still


class Pace:
    """Answers for one case. `is_stuck` is None where nothing tells, which is not "stuck"."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def is_stuck(self, rank: int, pending: Pending) -> bool | None:
        case = self._case
        if pending.seen_before is not None:
            if pending.seen_before and pending.lane in case.summaries[rank].advanced_lanes:
                return None  # its host runs ahead: it has not come to feel a hang yet, if there is one
            if pending.seen_before and pending.was_first is False:
                return None  # what it stood behind has ended since: at its own place it is seen for the first time
            return pending.seen_before
        if pending.timed_out:
            return True
        group = case.group(rank, pending).index
        call = case.call(rank, pending)
        if not pending.transfers and pending.seq <= case.proven_seq(group):
            return False if call is not None and signature.is_synchronising(call.operation) else None
        return self._by_age(rank, pending)

    def _by_age(self, rank: int, pending: Pending) -> bool | None:
        summary = self._case.summaries[rank]
        step = self._step_ns(rank)
        if summary.captured_at_ns is None or pending.created_ns is None or step is None:
            return None
        age = summary.captured_at_ns - pending.created_ns
        if age < _STEPS_UNTIL_SUSPECT * step:
            return False
        return True if age > max(_STEPS_UNTIL_STUCK * step, _FLOOR_NS) else None

    def _step_ns(self, rank: int) -> int | None:
        """A rank's slowest group paces it: a tensor-parallel group that runs a hundred times a step would not."""
        periods = [stream.period_ns for stream in self._case.summaries[rank].streams if stream.period_ns]
        return max(periods, default=None)

    def moves(self) -> bool | None:
        """True when the job is known to have moved: between looks, or between the dumps of one look."""
        case = self._case
        last_look = max((summary.look for summary in case.summaries.values()), default=0)
        # A rank that answered at an earlier look alone was left behind before the last: that says nothing of now.
        if any(
            case.is_stale(rank, group.index) and case.summaries[rank].look == last_look
            for group in case.groups
            for rank in group.ranks
        ):
            return True
        advanced = [summary.advanced for summary in case.summaries.values() if summary.advanced is not None]
        if any(advanced):
            return True
        known = [activity for activity in case.activities.values() if activity.moving is not None]
        moving = [activity for activity in known if activity.moving]
        if moving and (many_move(moving, case.observed) or not self._wait(known)):
            return True
        return False if advanced or known else None

    def _wait(self, known: Sequence[Activity]) -> bool:
        """All but those that move stand still in communication: they wait for them, and the job does not move."""
        still = [activity for activity in known if activity.moving is False]
        return bool(still) and all(
            activity.in_collective or activity.in_store_or_init or activity.gpu_sync for activity in still
        )

    def slowest(self) -> Slowness | None:
        """Return the rank for which all others of a group wait each time, by the arrival times of one host's clock."""
        best: Slowness | None = None
        for group in self._case.groups:
            found = self._slowest_of(group.index)
            if found is not None and (best is None or found.late_seconds > best.late_seconds):
                best = found
        return best

    def just_moved(self, group: int) -> bool:
        """All members called something in the last steps before their dumps: the job moved a moment ago."""
        step = self._step_of(group)
        summaries = [(member.stream, self._case.summaries[rank]) for rank, member in self._case.streams[group].items()]
        return bool(step and summaries) and all(
            summary.captured_at_ns is not None
            and stream.last_created_ns is not None
            and summary.captured_at_ns - stream.last_created_ns < _STEPS_UNTIL_SUSPECT * (step or 0.0)
            for stream, summary in summaries
        )

    def _slowest_of(self, group: int) -> Slowness | None:
        case = self._case
        streams = case.streams[group]
        members = len(case.groups[group].ranks)
        enough = len(streams) >= max(2, members) or (len(streams) >= 3 and 4 * len(streams) >= 3 * members)
        if not enough or len({case.activity(rank).host for rank in streams}) > 1:
            return None
        times: dict[int, dict[int, int]] = {}
        names: dict[int, str] = {}
        for rank, member in streams.items():
            for arrival in member.stream.arrivals:
                times.setdefault(arrival.seq, {})[rank] = arrival.created_ns
                call = member.call_at(arrival.seq)
                names[arrival.seq] = "" if call is None else f"{call.operation} {call.elements}"
        step = self._step_of(group)
        if step is None:
            return None
        best: Slowness | None = None
        # Each call by itself: the first of a step shows who comes late, the others then start together.
        for name in sorted(set(names.values())):
            common = [times[seq] for seq in sorted(times) if names[seq] == name and len(times[seq]) == len(streams)]
            found = _latest(common, step, group)
            if found is not None and (best is None or found.late_seconds > best.late_seconds):
                best = found
        return best._replace(all_seen=len(streams) >= members) if best is not None else None

    def _step_of(self, group: int) -> float | None:
        periods = [m.stream.period_ns for m in self._case.streams[group].values() if m.stream.period_ns]
        return median(periods) if periods else None


def _latest(calls: list[dict[int, int]], step_ns: float, group: int) -> Slowness | None:
    """The rank that comes last in nearly all of the recent calls, by a good part of a step."""
    if len(calls) < _MIN_ARRIVALS:
        return None
    recent = calls[-max(_MIN_ARRIVALS, len(calls) // 2) :]
    last = Counter(max(arrivals, key=lambda rank: arrivals[rank]) for arrivals in recent)
    rank, times_last = max(last.items(), key=lambda item: (item[1], -item[0]))
    late = median(arrivals[rank] - median(at for other, at in arrivals.items() if other != rank) for arrivals in recent)
    if late < max(_LATE_SHARE_OF_STEP * step_ns, _LATE_FLOOR_NS) or times_last < _LAST_SHARE * len(recent):
        return None
    return Slowness(rank, late / 1e9, step_ns / 1e9, times_last / len(recent), group, all_seen=True)
