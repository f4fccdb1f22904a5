"""What slow ranks cost their job, in seconds of each step: the part of the time in which the others wait for them, of a
step's mean length, both since they are slow. A few long steps cost as much as many that are a little longer."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import sqrt
from statistics import fmean, median, stdev

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.looks import Looks
from stallwatch.detectors.waiting import LEAST_LOOKS, Column, cost, difference, differences, lost
from stallwatch.model.verdict import Slowness
from stallwatch.progress.job_progress import SURE_ERRORS

_AT_ONCE = 0.05  # of a step: samples that lie less apart are of one moment
_EARLIER_LOOKS = 16  # of a job without slow ranks say how long its steps were; or
_SOME_LOOKS = 4  # where they surely show that it was without
_WAITS_EXPECTED = 3.0  # moments, if they had been as now: none of them is seen by chance in one of twenty
_WARM_UP = 0.04  # of a step: of jitter of 10 % means of a dozen steps and of two dozen differ by less
_JUST_BEFORE = 2  # looks: that in which it began, and a step of its own before that
_ALLOWED = 2.0  # times their interval of 95 %: they were chosen as those that show the most
_APART = 0.3  # of the cost: of looks at four moments a second
_MISSED = 20.0  # times as long as its steps take: nobody looked there, as in a phase
_WITHOUT = 0.35  # of the difference: less is a job without them
_TOLD_SHARE = 0.1  # of a step: slow.cost_share by default
_LOST = 0.15  # of what they seem to cost; a step that has become longer or shorter by less is as long as it was
_SURELY_LONGER = 4.0  # standard errors: it is asked at every look, for days
_OF_MEDIAN = 1.48  # a standard deviation, of the median of what lies between each and the median


def slow_cost(
    looks: Looks,
    peers: Sequence[tuple[int, Column]],
    ranks: Sequence[int],
    alive: Sequence[RankHistory],
    before_seconds: float = 0.0,
    least: int = LEAST_LOOKS,
) -> Slowness | None:
    """Given (rank, column) of peers over the last looks, return what the slow ones among them cost; None where no step
    is known. Under gloo the job waits where ranks of other programs do, too: a stage with little to do may need longer
    and nobody waits for it. (Under NCCL who waits is told by what peers have enqueued.) `before_seconds`: a step's
    length before they were slow, 0.0: not known; `least`: so many of the looks are surely of the time since they
    are."""
    found = _by_looks(looks, peers, ranks, alive, least)
    if found is None:
        return None
    seen, window = found
    # What was before is a mean of as many steps or more.
    apart = sqrt(2) * SURE_ERRORS * _step_error_ns(looks, window) / SECOND_NS
    return _against_past(seen, before_seconds, apart, at_most=looks.nccl)


def costs_nothing(
    looks: Looks,
    peers: Sequence[tuple[int, Column]],
    ranks: Sequence[int],
    alive: Sequence[RankHistory],
    before_seconds: float,
    unsure_seconds: float = 0.0,
) -> bool:
    """Whether a step is as long as it was before (`before_seconds`; 0.0: not known), though the others wait for these
    ranks since. A fault adds to some ranks and takes nothing from the others. These have as much less to do: all keep a
    rate, each by its own clock (a loader that gives so many batches a second, an environment), and who was late once
    stays late; or work has moved. `unsure_seconds`: as far the two lengths may lie apart by how they were measured."""
    found = _by_looks(looks, peers, ranks, alive, LEAST_LOOKS) if before_seconds else None
    if found is None:
        return False
    seen, _ = found
    longer = seen.step_seconds - before_seconds
    if not looks.nccl:
        return abs(longer) <= max(_LOST * seen.cost_seconds, unsure_seconds)
    # Hosts that run ahead of their devices meet nowhere: who has drawn the longest batches so far is last until it has
    # caught up, for dozens of steps. What its own steps vary by says how much longer so many of them are by chance.
    if 0.0 < longer <= _SURELY_LONGER * sqrt(2 / seen.steps) * _varies_by_ns(ranks, alive, seen.steps) / SECOND_NS:
        return True
    # Looks tell what it costs at most: a tenth of a step, which people want to know of, is less than a share of that.
    least = min(seen.cost_seconds, _TOLD_SHARE * seen.step_seconds)
    return abs(longer) <= max(_LOST * least, unsure_seconds)


def _by_looks(
    looks: Looks,
    peers: Sequence[tuple[int, Column]],
    ranks: Sequence[int],
    alive: Sequence[RankHistory],
    least: int,
) -> tuple[Slowness, int] | None:
    """What looks alone say, and of how many of the last."""
    window = since_when(differences(peers, ranks), least)
    if not window:
        return None
    columns = [(rank, column[-window:]) for rank, column in peers]
    span_ns = looks.looks[-1].at_ns - looks.since_ns(window)
    step_seconds = (looks.step_ns(window) or _median_ns(alive)) / SECOND_NS
    at_once = [apart_ns <= _AT_ONCE * step_seconds * SECOND_NS for apart_ns in looks.apart_ns(window)]
    everybody = columns if looks.nccl else looks.columns_of(looks.members, window)
    share, error = lost(everybody, ranks, at_once) or difference(columns, ranks)
    seen = cost(share, error, step_seconds, looks.steps_within(window), span_ns / SECOND_NS)
    return None if seen is None else (seen, window)


def _step_error_ns(looks: Looks, window: int) -> float:
    """The standard error of a step's mean length in the last looks; 0.0 where it is not known."""
    middle = looks.step_ns(window)
    squares, steps = 0.0, 0
    for (one_ns, one), (after_ns, after) in pairwise(_moments(looks, window)):
        many = after - one
        if one >= 0 and many > 0 and after_ns - one_ns <= _MISSED * many * middle:
            squares += (after_ns - one_ns - many * middle) ** 2 / many
            steps += many
    return sqrt(squares) / steps if steps else 0.0


def _against_past(seen: Slowness, before_seconds: float, apart: float, *, at_most: bool) -> Slowness:
    """By how much a step is longer than before they were slow is known better than by looks, which are few: it is what
    they cost, where looks allow that. (Otherwise something else has changed, too.) A host that comes late to its device
    costs less than looks say, `at_most` that, and its job no more than it has lost. `apart`: so many seconds may lie
    between the two lengths by what steps vary."""
    lost = max(0.0, seen.step_seconds - before_seconds)
    unsure = max(_ALLOWED * (seen.high_seconds - seen.cost_seconds), _APART * seen.cost_seconds)
    least, most = seen.cost_seconds - unsure, seen.cost_seconds + unsure
    if not before_seconds or lost > most or (lost < least and not at_most):
        return seen
    low, high = min(seen.low_seconds, lost - apart), lost + apart
    low, high = max(0.0, low), max(seen.high_seconds, high) if lost >= least else high
    return msgspec.structs.replace(seen, cost_seconds=lost, low_seconds=low, high_seconds=high)


def seconds_before(looks: Looks, peers: Sequence[tuple[int, Column]], ranks: Sequence[int], window: int) -> float:
    """Given (rank, column) of peers over all looks, and the ranks that are slow in the last `window` of them, return
    how long a step was before they were; 0.0 where the job was not seen without for so long that it tells whether they
    cost anything."""
    less = differences(peers, ranks)
    since = since_when(less[-window:])
    # It began some looks before those that show it surely.
    begun = since + since // 2
    earlier = less[:-begun]
    if len(earlier) < _EARLIER_LOOKS or fmean(earlier) > _WITHOUT * fmean(less[-since:]):
        return 0.0
    return _early_step_ns(looks, len(less), len(earlier)) / SECOND_NS


def seconds_without(looks: Looks, peers: Sequence[tuple[int, Column]], ranks: Sequence[int], window: int) -> float:
    """The same as well as it can be known, for the figure of what they cost: of ranks that are slow, a job that was
    seen without for some seconds was seen so. Who is only late for a while, and costs nothing, is not known by it."""
    less = differences(peers, ranks)
    now = fmean(less[-since_when(less[-window:]) :])
    # A window may be shorter than the time since then.
    since = since_when(less, LEAST_LOOKS, now)
    # It began some looks before those that show it surely; of few before it a third is left out at most.
    begun = since + max(_JUST_BEFORE, min(since // 2, (len(less) - since) // 3))
    earlier = less[:-begun]
    if len(earlier) < _EARLIER_LOOKS:
        return _before_by_few(looks, earlier, now) / SECOND_NS
    if fmean(earlier) > _WITHOUT * now:
        return 0.0
    return _early_step_ns(looks, len(less), len(earlier), _WARM_UP) / SECOND_NS


def _early_step_ns(looks: Looks, many: int, earlier: int, warm_up: float = 0.0) -> float:
    """A step's mean length in the first `earlier` of so many looks. A warm-up is long past, or does not count: the
    later half has it least. `warm_up`: by which part all of them are longer then; of less the lower of the two would
    be too low."""
    whole = _usual_step_ns(looks, many, many - earlier)
    later = _usual_step_ns(looks, many - earlier + earlier // 2, many - earlier)
    return later if 0.0 < later * (1.0 + warm_up) < whole else whole


def _before_by_few(looks: Looks, earlier: Sequence[float], now: float) -> float:
    """A step's length in the first looks, nanoseconds; 0.0 where they are too few to show that these ranks were not
    waited for then: of a rank that is waited for a fifth of the time four moments in five show nothing."""
    first = looks.looks[: len(earlier)]
    moments = sum(look.ticks for look in first)
    if len(first) < _SOME_LOOKS or now * moments < _WAITS_EXPECTED:
        return 0.0
    if fmean(earlier) + stdev(earlier) / sqrt(len(earlier)) > _WITHOUT * now:
        return 0.0
    # A look comes up to a quarter of a second after its step began; the records have the steps' own lengths.
    lengths = (look.itself_ns for look in first)
    known = [median(of_look) for of_look in lengths if of_look and all(of_look)]
    return median(known) if len(known) >= _SOME_LOOKS else 0.0


def _moments(looks: Looks, window: int, but: int = 0) -> list[tuple[int, int]]:
    """(when it began, its step) of each of the last looks, `but` the newest so many."""
    return [(look.at_ns, look.step) for look in looks.looks[-window : -but or None]]


def _usual_step_ns(looks: Looks, window: int, but: int) -> float:
    """`Looks.step_ns` without steps in which the job stood: who was held up before says nothing of how fast it is."""
    moments = _moments(looks, window, but)
    if window >= len(looks.looks) == looks.count:
        moments = moments[1:]  # the first of all begins in the midst of a step
    each = [
        (after_ns - one_ns, after - one) for (one_ns, one), (after_ns, after) in pairwise(moments) if after > one >= 0
    ]
    if not each:
        return 0.0
    most = _MISSED * median([time_ns / steps for time_ns, steps in each])
    usual = [(time_ns, steps) for time_ns, steps in each if time_ns <= most * steps]
    return sum(time_ns for time_ns, _ in usual) / sum(steps for _, steps in usual)


def since_when(less: Sequence[float], least: int = LEAST_LOOKS, now: float | None = None) -> int:
    """Given by how much less some ranks wait at each look, oldest first, return how many of the newest looks are of the
    time since they do, `least` at least: a window that found it begins before that, and what was before costs
    nothing. `now`: by how much they do so since then; None: by the mean of these looks."""
    if len(less) <= least:
        return len(less)
    half = (fmean(less) if now is None else now) / 2
    sums = [*accumulate(one - half for one in reversed(less))]
    return max(range(least, len(less) + 1), key=lambda count: (sums[count - 1], count))


def _varies_by_ns(ranks: Sequence[int], alive: Sequence[RankHistory], steps: int) -> float:
    """The standard deviation of the last steps of these ranks by their own records; 0.0 where they do not have them. A
    few that are far longer do not count: a job that saves now and then has slow ranks, too."""
    beats = [rank.heartbeat for rank in alive if rank.heartbeat and rank.sample.rank in ranks]
    each = [beat.step_durations_ns[-steps:] for beat in beats if beat.step_durations_ns]
    middles = [median(of) for of in each]
    apart = (median(abs(one - middle) for one in of) for of, middle in zip(each, middles, strict=True))
    return _OF_MEDIAN * max(apart, default=0.0)


def _median_ns(alive: Sequence[RankHistory]) -> float:
    """Of the steps that the records still have."""
    durations = [duration for rank in alive if rank.heartbeat for duration in rank.heartbeat.step_durations_ns]
    return median(durations) if durations else 0.0
