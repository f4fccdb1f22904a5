"""Stuck or moving: by two looks, by what dumps taken apart prove about each other, by age against the job's step; who
comes late to each call, whether work has moved to them, and where they spend time that their peers do not."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import sqrt
from statistics import fmean, median, stdev
from typing import NamedTuple

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder import signature
from stallwatch.model.evidence import RankEvidence
from stallwatch.model.summary import Pending
from stallwatch.model.verdict import Slowness
from stallwatch.progress.job_progress import SURE_ERRORS, many_move, minorities, stand_apart

# Whether work has moved from the other ranks to those that come late now: experts and dynamic batches share one amount
# of work among the ranks, so that one gets what others lose. A fault adds to one rank and takes nothing from the
# others.


_LEAST_CALLS = 8  # of a kind, before and since
_SELDOM = 0.5  # a step: what is called once in a while is not what a step holds
_OF_THE_RISE = 0.5  # what the others have lost is at least this part of what the late ones have got
_ERRORS = 2.0  # and surely more than none
_OF_MEDIAN = 1.25  # times the standard error of a mean
_QUICKEST, _LEAST_QUICKEST = 0.1, 4  # of a rank's own times


class Met(NamedTuple):
    """One call of a group: what it was, and when each rank came to it, in nanoseconds."""

    kind: str
    arrivals: Mapping[int, int]


Of = Callable[[Sequence[int], int], tuple[float, float]]


def in_the_middle(times: Sequence[int], few: int) -> tuple[float, float]:
    """Given a rank's own times, return their median and its standard error; `few`, how many there are of those that
    they are compared with, does not matter."""
    return median(times), _OF_MEDIAN * stdev(times) / sqrt(len(times))


def at_best(times: Sequence[int], few: int) -> tuple[float, float]:
    """Given the same, return the mean of the quickest tenth, or of a larger part where that is less than four of the
    `few` (the least of a hundred is less than the least of ten, whatever has moved), and its standard error.

    Where ranks have to wait for a CPU their own times hold what the crowd takes, and change with it; of the quickest it
    takes least. Eight ranks on two CPUs, measured: of work that had moved, at a load of 19, the others had 103 ms less
    by the median and 63 by these, and the one had got 64; of a crowd that had ended, at 35, 55 and 21. At 45 neither
    tells."""
    ordered = sorted(times)
    part = max(_QUICKEST, _LEAST_QUICKEST / min(few, len(ordered)))
    many = min(len(ordered), round(part * len(ordered)))
    # What is longer counts as long as the longest of these: only that it is longer matters.
    seen = [min(time, ordered[many - 1]) for time in ordered]
    return fmean(ordered[:many]), stdev(seen) * sqrt(len(ordered)) / many


def eased_ns(calls: Sequence[Met], late: Sequence[int], since_ns: int, steps: int, of: Of = in_the_middle) -> float:
    """Given all calls of a group, oldest first, the ranks that come late since a moment, and how many steps there have
    been since, return by how much all others together have less to do in each step since then; 0.0 where that is not
    clearly about what the late ones have more, in most steps as in those that count: who is late in four steps of five
    has hardly more to do in its quickest. `of`: by what of a rank's own times."""
    before, since = _own_times(calls, 0, since_ns), _own_times(calls, since_ns, None)
    change: dict[int, float] = defaultdict(float)
    usually: dict[int, float] = defaultdict(float)
    variance = 0.0
    for kind, ranks in since.items():
        earlier = before.get(kind, {})
        each = len(next(iter(ranks.values()))) / max(steps, 1)
        if each < _SELDOM:
            continue
        for rank, times in ranks.items():
            if min(len(times), len(earlier.get(rank, ()))) < _LEAST_CALLS:
                return 0.0
            few = min(len(times), len(earlier[rank]))
            (now, error), (then, of_then) = of(times, few), of(earlier[rank], few)
            change[rank] += each * (now - then)
            usually[rank] += each * (median(times) - median(earlier[rank]))
            variance += 0.0 if rank in late else each**2 * (error**2 + of_then**2)
    of_all = max(median([more for rank, more in usually.items() if rank not in late] or [0.0]), 0.0)  # a crowd's
    rise = max((max(change[rank], usually[rank] - of_all) for rank in late if rank in change), default=0.0)
    eased = -sum(less for rank, less in change.items() if rank not in late)
    return eased if rise > 0 and eased >= max(_OF_THE_RISE * rise, _ERRORS * sqrt(variance)) else 0.0


def _own_times(calls: Sequence[Met], from_ns: int, to_ns: int | None) -> dict[str, dict[int, list[int]]]:
    """By kind of call and rank: from the last arrival at one call, when all could go on, to its own at the next; of
    calls that ended in a span of time."""
    own: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one, after in pairwise(calls):
        began, ended = max(one.arrivals.values()), max(after.arrivals.values())
        if began < from_ns or (to_ns is not None and ended >= to_ns):
            continue
        for rank, at in after.arrivals.items():
            own[after.kind][rank].append(at - began)
    return own


# One look at a wait younger than this many steps is a look at a job that may be moving.
_STEPS_UNTIL_SUSPECT = 3
# A wait older than this many steps, and than the floor below, is not a step any more.
_STEPS_UNTIL_STUCK = 20
YOUNG_NS = 3_000_000_000  # nobody suspects a hang before 5 s, and times of capture are accurate to a second or two
_MIN_ARRIVALS = 8
_NEWEST = 12  # calls by which it is decided who comes last now
# Ranks hold the job back if they come last nearly always, by a good part of a step.
_LAST_SHARE = 0.75
# A call in which another came last speaks against it by this much (0.95 against 0.3, as logarithms of likelihoods).
_NOT_LAST = -2.3
_LATE_SHARE_OF_STEP = 0.08  # of the step without it: less is told by nobody, and more is measured by detectors
_LATE_FLOOR_NS = 3_000_000  # less is scheduling noise of the host
_MANY_TIMES = 6.0
_AS_LONG = 1.5  # times: a group's period is that of its calls
_INTERVAL = 0.98  # half an interval of 95 % of a median, in roots of its observations


class Late(NamedTuple):
    """Ranks for which all others of a group wait, each time."""

    ranks: tuple[int, ...]
    slowness: Slowness
    share_last: float
    group: int
    all_seen: bool  # False: a member without a dump may come later still
    since_ns: int = 0  # of the clock of arrivals
    eased_seconds: float = 0.0  # of each step, by which all others together have less to do since then
    eased_at_best_seconds: float = 0.0  # the same by the quickest steps


def most_looks(ranks: Iterable[RankEvidence]) -> int:
    """How often that rank was seen of which most looks are left: one alone, be it the second, shows no standstill."""
    seen = (
        [*(r.look for r in one.recorders), *(s.look for s in one.stacks), *(p.look for p in one.processes)]
        for one in ranks
    )
    return max((len(set(looks)) for looks in seen), default=1) or 1


class Pace:
    """Answers for one case. `is_stuck` is None where nothing tells, which is not "stuck"."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def is_stuck(self, rank: int, pending: Pending) -> bool | None:
        """Whether a pending operation is known to stand (True) or to have moved (False); None where nothing tells."""
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
        return True if age > max(_STEPS_UNTIL_STUCK * step, YOUNG_NS) else None

    def _step_ns(self, rank: int) -> int | None:
        """A rank's slowest group paces it: a tensor-parallel group that runs a hundred times a step would not."""
        periods = [stream.period_ns for stream in self._case.summaries[rank].streams if stream.period_ns]
        return max(periods, default=None)

    def moves(self) -> bool | None:
        """True when the job is known to have moved: between looks, or between the dumps of one look."""
        case = self._case
        last_look = max((summary.look for summary in case.summaries.values()), default=0)
        # A rank that answered at an earlier look alone was left behind before the last: that says nothing of now.
        if any(case.summaries[rank].look == last_look for rank, _ in case.stale):
            return True
        advanced = [summary.advanced for summary in case.summaries.values() if summary.advanced is not None]
        if any(advanced):
            return True
        known = [activity for activity in case.activities.values() if activity.progress.moving is not None]
        moving = [activity for activity in known if activity.progress.moving]
        if moving and (many_move(moving, case.observed) or not self._wait(known)):
            return True
        return False if advanced or known else None

    def _wait(self, known: Sequence[RankActivity]) -> bool:
        """All but those that move stand still in communication: they wait for them, and the job does not move."""
        still = [activity for activity in known if activity.progress.moving is False]
        return bool(still) and all(
            activity.call.in_collective or activity.place.in_store_or_init or activity.place.gpu_sync
            for activity in still
        )

    def slowest(self) -> Late | None:
        """Return the ranks for which all others of a group wait each time, by the arrival times of one host's clock."""
        found = (self._slowest_of(group.index) for group in self._case.groups)
        return max((late for late in found if late), key=lambda late: late.slowness.cost_seconds, default=None)

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

    def _slowest_of(self, group: int) -> Late | None:
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
        # Each call by itself: the first of a step shows who comes late, the others then start together.
        found = (
            _latest(
                [times[seq] for seq in sorted(times) if names[seq] == name and len(times[seq]) == len(streams)], step
            )
            for name in sorted(set(names.values()))
        )
        latest = max((late for late in found if late), key=lambda late: late.slowness.cost_seconds, default=None)
        if latest is None:
            return None
        met = [Met(names[seq], times[seq]) for seq in sorted(times) if len(times[seq]) == len(streams)]
        eased, eased_at_best = (
            eased_ns(met, latest.ranks, latest.since_ns, latest.slowness.steps, of) / 1e9
            for of in (in_the_middle, at_best)
        )
        every = len(streams) >= members
        return latest._replace(group=group, all_seen=every, eased_seconds=eased, eased_at_best_seconds=eased_at_best)

    def _step_of(self, group: int) -> float | None:
        periods = [m.stream.period_ns for m in self._case.streams[group].values() if m.stream.period_ns]
        return median(periods) if periods else None


def _latest(calls: Sequence[dict[int, int]], step_ns: float) -> Late | None:
    """Given when each rank came to each call, oldest first, and a step's usual length: who comes last in nearly all
    since it became slow, by a good part of a step. A minority may come late together."""
    if len(calls) < _MIN_ARRIVALS:
        return None
    newest = calls[-_NEWEST:]
    ranks = sorted(newest[0], key=lambda rank: -median(_behind(arrivals, (rank,)) for arrivals in newest))
    for slow, others in minorities(ranks):
        behind = [_behind(arrivals, slow) for arrivals in calls]
        last = [min(arrivals[rank] for rank in slow) > max(_others(arrivals, slow)) for arrivals in calls]
        count = _since_when(last)
        if count is None:
            continue
        gaps = [min(at[rank] for rank in slow) - max(_others(at, slow)) for at in calls[-count:]]
        late, ahead = median(behind[-count:]), median(gaps)
        step = max(step_ns, _distance(calls[-count:]))
        without = max(step - late, 1.0)
        began = len(calls) - count >= _MIN_ARRIVALS
        apart = stand_apart(len(slow), len(others), late / without, ahead / without, _LATE_SHARE_OF_STEP, began=began)
        if _interval(behind[-count:])[0] > 0 and late >= _LATE_FLOOR_NS and apart:
            # What they cost is what the last of the others waits for the last of them, who would else be waited for: on
            # the whole, for a CPU that is shared makes of some calls many times what it makes of most.
            waits = [max(0, max(at[rank] for rank in slow) - max(_others(at, slow))) for at in calls[-count:]]
            spanned = median(calls[-1].values()) - median(calls[-count].values())
            mean, error = _mean(waits)
            low, high = max(0.0, mean - SURE_ERRORS * error), mean + SURE_ERRORS * error
            each = _mean(_distances(calls[-count:]))[0]
            # Of groups that are called several times a step it is a part of that.
            length = each if step_ns <= _AS_LONG * each else step
            cost = Slowness(mean / 1e9, low / 1e9, high / 1e9, length / 1e9, count, spanned / 1e9)
            since_ns = max(calls[-count].values())
            return Late(tuple(sorted(slow)), cost, sum(last[-count:]) / count, 0, all_seen=True, since_ns=since_ns)
    return None


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """About 95 % of their median."""
    ordered, error = sorted(values), _INTERVAL * sqrt(len(values))
    middle = len(values) / 2
    return ordered[max(0, int(middle - error))], ordered[min(len(values) - 1, int(middle + error))]


def _since_when(last: Sequence[bool]) -> int | None:
    """Given for each call, oldest first, whether they came last, return how many of the newest calls are of the time
    since they do: the run that tells it best from chance. None: they do not come last nearly always now."""
    if sum(last[-_MIN_ARRIVALS:]) < _LAST_SHARE * _MIN_ARRIVALS:
        return None
    sums = list(accumulate(1.0 if was_last else _NOT_LAST for was_last in reversed(last)))
    counts = range(_MIN_ARRIVALS, len(last) + 1)
    return max(counts, key=lambda count: (sums[count - 1], -count))


def _others(arrivals: dict[int, int], slow: Sequence[int]) -> list[int]:
    return [at for rank, at in arrivals.items() if rank not in slow]


def _behind(arrivals: dict[int, int], slow: Sequence[int]) -> float:
    """By how much the first of these comes behind the others' median."""
    return min(arrivals[rank] for rank in slow) - median(_others(arrivals, slow))


def _distance(calls: Sequence[dict[int, int]]) -> float:
    """Median time between two calls, as all ranks together see it."""
    return median(_distances(calls))


def _distances(calls: Sequence[dict[int, int]]) -> list[int]:
    times = [max(arrivals.values()) for arrivals in calls]
    return [after - before for before, after in pairwise(times)]


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """And its standard error. What is many times as long as most is another thing: a checkpoint, a stop."""
    most = _MANY_TIMES * median(values)
    usual = [value for value in values if value <= most] or list(values)
    return fmean(usual), stdev(usual) / sqrt(len(usual)) if len(usual) > 1 else 0.0
