"""Ranks that hold a moving job back: those that wait least among their peers, or whose steps fall behind."""

from collections.abc import Sequence
from functools import partial

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import SlowSection
from stallwatch.detectors.counter_samples import PeerRank
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.lagging import LAG_LOOKS, Lagging, lags_of, who_lags
from stallwatch.detectors.lasting import (
    LASTS_NS,
    columns_with,
    goes_on,
    has_lasted,
    is_by_design,
    is_from_start,
    is_over,
)
from stallwatch.detectors.looks import Looks, looked, peers_of
from stallwatch.detectors.shares import Shares, shares_of
from stallwatch.detectors.slow_cost import costs_nothing, seconds_before, seconds_without, slow_cost
from stallwatch.detectors.slow_words import SlowReason, cost_lead, held_back
from stallwatch.detectors.waiting import (
    CONFIRM_NATS,
    LEAST_LOOKS,
    SPAN_NS,
    WINDOWS,
    Column,
    Least,
    Peers,
    becomes_more,
    difference,
    is_due,
    is_spread,
    who_waits_least,
)
from stallwatch.detectors.why_slow import why_slow
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Slowness

_SHOWN = 0.6  # of the time for which it must last
_HOLD_TICKS = 10  # a rank that fell behind by its steps outlives single looks that dissent
# The needed difference is less than the cost that is told: what is found so is measured before anybody hears of it.
_SEARCHED = 0.65
# What it costs is measured over so long once it is told, and the first part of that may be of before it began.
_MEASURED_NS = 60 * SECOND_NS
_MEASURED_LOOKS = 48  # or over so many: of steps of five seconds a dozen vary by a third of what +30 % costs
_SURELY_OF_IT = 0.7
_WARM_UP_NS = 60 * SECOND_NS  # what has been so since the first steps may end with them: one rank compiles for longer
_MORE = 1.5  # times what it was at first: that is new
_SHOWN_LOOKS = 64  # what people see of ranks of which nothing was found


class _Watched(msgspec.Struct, frozen=True):
    job: JobKey
    looks: Looks = Looks()
    lagging: tuple[Lagging, ...] = ()
    # By the shortest window that spans enough time, then by WINDOWS.
    by_window: tuple[Least | None, ...] = (None,) * (1 + len(WINDOWS))
    shares: tuple[tuple[int, int, Shares], ...] = ()  # rank, pid
    first_mark: int = -1  # of the first look
    anew_ns: int = 0  # looks before say what is usual in this job, and nothing of what is so now
    waited_for: tuple[int, ...] = ()  # for whom the others wait, since when they do; and
    before_seconds: float = 0.0  # how long a step was before; 0: not known
    without_seconds: float = 0.0  # the same by few looks, where it must do

    def shown_since_ns(self, ranks: tuple[int, ...]) -> int:
        """Since when some window shows these ranks without a gap; some window does."""
        return min(least.since_ns for least in self.by_window if least and least.ranks == ranks)

    @property
    def least(self) -> Least | None:
        """The one that some window tells best."""
        return max((least for least in self.by_window if least), key=lambda one: (one.sure, one.nats), default=None)


class _Slow(msgspec.Struct, frozen=True):
    job: JobKey
    ranks: tuple[int, ...]
    since_ns: int
    confirmed: bool
    reason: SlowReason
    slowness: Slowness | None = None
    share: float = 0.0  # of the time that the others waited for it more than it did, when it was found; 0: by its steps
    took_ns: int = 0  # from its beginning until it was found, or as long as it must last
    from_start: bool = False
    first_share: float = 0.0  # the share as it was first found
    found_looks: int = 0  # of the job, when it was
    grows: bool = False  # it has become more since then, and by little all the time
    lately: bool = False  # the last seconds show it, too
    quiet_ticks: int = 0
    before_seconds: float = 0.0  # a step's length before they were slow; 0: not known


class SlowState(msgspec.Struct, frozen=True):
    """What is remembered of jobs that may have slow ranks."""

    watched: tuple[_Watched, ...] = ()
    slow: tuple[_Slow, ...] = ()

    def shares(self) -> dict[tuple[JobKey, int, int], Shares]:
        """By (job, rank, pid): of a rank that was found slow what is told of it, of any other what its looks say."""
        told = {(one.job, rank): one.slowness.share for one in self.slow if one.slowness for rank in one.ranks}
        return {
            (watched.job, rank, pid): Shares(shares.communication, told.get((watched.job, rank), shares.slow))
            for watched in self.watched
            for rank, pid, shares in watched.shares
        }


def searched_share(slow: SlowSection) -> float:
    """By which share of a step's time peers must wait more: for a cost of 10 % of a step, 9 % of what it takes now."""
    return _SEARCHED * slow.cost_share / (1 + slow.cost_share)


def waits_of(state: SlowState) -> dict[JobKey, tuple[Looks, int]]:
    """Return what was looked at of each job, and the step, or count, of its first look."""
    return {watched.job: (watched.looks, watched.first_mark) for watched in state.watched}


class SlowDetector:
    """Ranks for which the others wait at nearly every step."""

    name = "slow"

    def __init__(self, slow: SlowSection) -> None:
        self._slow = slow
        self._searched_share = searched_share(slow)

    def start(self) -> SlowState:
        """The state before the first tick: no rank is watched."""
        return SlowState()

    def step(self, state: SlowState, seen: NodeHistory) -> tuple[SlowState, tuple[Finding, ...]]:
        """Given who waited for whom, return a finding for each rank that holds its job back."""
        if not self._slow.enabled:
            return state, ()
        known = {watched.job: watched for watched in state.watched}
        watched: list[_Watched] = []
        slow: list[_Slow] = []
        for job, ranks in seen.jobs():
            alive = [rank for rank in ranks if rank.alive and rank.heartbeat is not None]
            moved = any(rank.moved for rank in alive)
            before = next((s for s in state.slow if s.job == job), None)
            of_job = _with_before(self._watch(known.get(job, _Watched(job)), alive), before)
            now = self._judge(of_job, alive, before, seen) if moved else None
            if before and (now is None or now.ranks != before.ranks) and not _gives_way(before, now, of_job):
                held = self._held(before, of_job, alive, moved=moved)
                if held is None:
                    of_job = _begun_anew(of_job, before)
                now = held or now
            watched.append(of_job)
            if now:
                slow.append(now)
        return SlowState(tuple(watched), tuple(slow)), tuple(self._finding(s) for s in slow)

    def _watch(self, before: _Watched, alive: Sequence[RankHistory]) -> _Watched:
        looks = looked(before.looks, alive)
        by_window, shares = before.by_window, before.shares if looks.members else ()
        if looks.count != before.looks.count:
            begun_anew = looks.count < before.looks.count
            by_window = self._by_window(before, looks)
            if begun_anew or not shares or is_due(_SHOWN_LOOKS, before.looks.count, looks.count):
                shares = shares_of(looks, _SHOWN_LOOKS)
        lagging = lags_of(before.lagging, alive)
        first_mark = before.first_mark if before.looks.count and looks.count >= before.looks.count else looks.mark
        anew = looks.count < before.looks.count
        known = ((), 0.0, 0.0) if anew else (before.waited_for, before.before_seconds, before.without_seconds)
        return _Watched(before.job, looks, lagging, by_window, shares, first_mark, before.anew_ns, *known)

    def _by_window(self, before: _Watched, looks: Looks) -> tuple[Least | None, ...]:
        """What each window says; a long one, of which hardly a look is new, still what it said."""
        shortest = max(LEAST_LOOKS, looks.within(SPAN_NS))
        begun_anew = looks.count < before.looks.count
        old = dict(zip(WINDOWS, before.by_window[1:], strict=True))
        windows = (shortest, *(window for window in WINDOWS if window > shortest))
        due = [
            window
            for window in windows
            if window == shortest or begun_anew or is_due(window, before.looks.count, looks.count)
        ]
        seen = [w for w in due if w <= len(looks.looks) and looks.since_ns(w) >= before.anew_ns]
        new = dict.fromkeys(due) | (self._leasts(looks, seen) if seen else {})
        return new[shortest], *((new if w in new else old)[w] if w > shortest else None for w in WINDOWS)

    def _leasts(self, looks: Looks, windows: Sequence[int]) -> dict[int, Least | None]:
        """Who waits least, by each of these windows."""
        found: dict[int, list[Least]] = {window: [] for window in windows}
        ways = (False, True) if looks.nccl else (True,)
        waited = [looks.shares(windows, surely=way) for way in ways]
        place_of = {(member.rank, member.pid): place for place, member in enumerate(looks.members)}
        for members in peers_of(looks.members):
            if len(members) < 2:
                continue
            places = [place_of[member.rank, member.pid] for member in members]
            spread = [w for w in windows if self._is_spread([shares[w] for shares in waited], places)]
            if not spread:
                continue
            said = [looks.columns_of(members, max(spread), surely=way) for way in ways]
            # As a rule all ideas of the counts' distances say the same: that is judged once.
            each = [Peers(columns) for columns in (said if said[0] != said[-1] else said[:1])]
            for window in spread:
                before, since_ns = partial(_before, looks, members, window), looks.since_ns(window)
                leasts = [who_waits_least(peers, window, self._searched_share, before, since_ns) for peers in each]
                # A wrong idea of the distances makes one the least whenever another is: surely where all say the same.
                same = len({least and least.ranks for least in leasts}) == 1
                last = next((least for least in reversed(leasts) if least is not None), None)
                if last is not None:
                    found[window].append(last if same else msgspec.structs.replace(last, sure=False))
        return {
            window: max(leasts, key=lambda least: (least.sure, least.nats), default=None)
            for window, leasts in found.items()
        }

    def _is_spread(self, ways: Sequence[Sequence[float]], places: Sequence[int]) -> bool:
        """Given how much every member waits, by each idea of it, return whether one of those in these places may wait
        less than the others."""
        return any(is_spread([shares[place] for place in places], self._searched_share) for shares in ways)

    def _judge(
        self, watched: _Watched, alive: list[RankHistory], before: _Slow | None, seen: NodeHistory
    ) -> _Slow | None:
        job, least = watched.job, watched.least
        if least is None:
            return _by_steps(watched, alive, before, seen)
        same = before is not None and before.ranks == least.ranks
        told = same and before is not None and before.confirmed
        if not told and is_by_design(watched.looks, least):
            return None
        since_ns = before.since_ns if before and same else least.since_ns
        shown_lately = goes_on(watched.looks, least)
        lasts_ns = seen.at_ns - since_ns
        lasts = same and shown_lately and has_lasted(watched.looks, least, lasts_ns)
        # It is held over gaps: a rank that had two turns with another's between was told to be slow since the first.
        lasts = lasts and seen.at_ns - watched.shown_since_ns(least.ranks) >= _SHOWN * min(lasts_ns, LASTS_NS)
        seconds = before.before_seconds if before and told else watched.before_seconds
        if not told:
            peers = columns_with(watched.looks, least.ranks, least.looks)
            if costs_nothing(watched.looks, peers, least.ranks, alive, seconds):
                return None
            seconds = watched.without_seconds
        since_told = _measured_looks(watched.looks, seen.at_ns - since_ns) if told else 0
        columns = columns_with(watched.looks, least.ranks, max(least.looks, since_told))
        surely = max(LEAST_LOOKS, int(_SURELY_OF_IT * since_told))
        slowness = slow_cost(watched.looks, columns, least.ranks, alive, seconds, surely)
        share = least.peers_share - least.share
        first_share = before.first_share if before and same else share
        from_start = before.from_start if before and same else is_from_start(watched.looks, watched.first_mark, least)
        from_start = from_start and share <= _MORE * first_share
        if slowness is not None and not seconds:
            slowness = msgspec.structs.replace(slowness, at_most=True)
        warms_up = from_start and seen.at_ns - since_ns < _WARM_UP_NS
        confirmed = told or (lasts and not warms_up and least.sure and least.nats >= CONFIRM_NATS)
        found_looks = before.found_looks if before and same else watched.looks.count
        lately = min(watched.looks.count - found_looks, len(watched.looks.looks))
        grows = bool(lately) and becomes_more(columns_with(watched.looks, least.ranks, lately), least.ranks)
        since = " since the first steps" if from_start else " more and more" if grows else ""
        lead = cost_lead(slowness)
        reason = SlowReason(held_back(least, since), lead, why_slow(least.ranks[0], alive, seen))
        took_ns = before.took_ns if before and same else max(seen.at_ns - since_ns, LASTS_NS)
        return _Slow(
            job,
            least.ranks,
            since_ns,
            confirmed,
            reason,
            slowness,
            share,
            took_ns,
            from_start,
            first_share,
            found_looks,
            grows,
            shown_lately,
            before_seconds=seconds,
        )

    def _held(self, before: _Slow, watched: _Watched, alive: Sequence[RankHistory], *, moved: bool) -> _Slow | None:
        """It is slow until it is as fast as its peers for as long as it took to find: chance makes gaps in a state
        that lasts. None when that is so."""
        if not set(before.ranks) < {rank.sample.rank for rank in alive}:
            return None  # it has gone, or all are gone whom it held back
        before = msgspec.structs.replace(before, lately=False)
        if not before.share:
            quiet = before.quiet_ticks + moved
            return msgspec.structs.replace(before, quiet_ticks=quiet) if quiet <= _HOLD_TICKS else None
        window = max(LEAST_LOOKS, watched.looks.within(before.took_ns))
        if len(watched.looks.looks) < window:
            return before  # it stands still, evaluates, or its record is new: nothing is known otherwise
        columns = columns_with(watched.looks, before.ranks, window)
        if len(columns) <= len(before.ranks):
            return before  # the others stand: nobody is left to compare it with
        lasts_ns = watched.looks.looks[-1].at_ns - before.since_ns
        measured = max(window, _measured_looks(watched.looks, lasts_ns))
        every = columns_with(watched.looks, before.ranks, measured)
        surely = max(LEAST_LOOKS, int(_SURELY_OF_IT * window))
        slowness = slow_cost(watched.looks, every, before.ranks, alive, before.before_seconds, surely)
        left, error = difference(columns, before.ranks)
        if is_over(left, error, before.share, self._searched_share / 2):
            return None
        if slowness is None:
            return before
        at_most = before.slowness is not None and before.slowness.at_most
        return msgspec.structs.replace(before, slowness=msgspec.structs.replace(slowness, at_most=at_most))

    def _finding(self, slow: _Slow) -> Finding:
        return Finding(
            detector=self.name,
            stage="confirmed" if slow.confirmed else "suspect",
            job=slow.job,
            ranks=slow.ranks,
            since_ns=slow.since_ns,
            limit_seconds=0.0,
            reason=slow.reason.told(slow.slowness),
            without_cost=slow.reason.told(None),
            slowness=slow.slowness,
            from_start=slow.from_start,
            grows=slow.grows,
            lately=slow.lately,
        )


def _measured_looks(looks: Looks, lasts_ns: int) -> int:
    """Of how many of the last looks a cost is made that lasts for so long."""
    return max(looks.within(min(lasts_ns, _MEASURED_NS)), min(looks.within(lasts_ns), _MEASURED_LOOKS))


def _with_before(watched: _Watched, slow: _Slow | None) -> _Watched:
    """With how long a step was before the others waited for whom they do: later no look is left of that time."""
    least = watched.least
    if least is None or (slow is not None and slow.confirmed and slow.ranks == least.ranks):
        return watched
    every = columns_with(watched.looks, least.ranks, len(watched.looks.looks))
    same = watched.waited_for == least.ranks
    asked = (watched.looks, every, least.ranks, least.looks)
    return msgspec.structs.replace(
        watched,
        waited_for=least.ranks,
        before_seconds=seconds_before(*asked) or same * watched.before_seconds,
        without_seconds=seconds_without(*asked) or same * watched.without_seconds,
    )


def _gives_way(before: _Slow, now: _Slow | None, watched: _Watched) -> bool:
    """A suspicion that no window shows any more does not stand in the way of another one."""
    still = any(least is not None and least.ranks == before.ranks for least in watched.by_window)
    return now is not None and not before.confirmed and not still


def _begun_anew(watched: _Watched, over: _Slow) -> _Watched:
    """What is over must not be found again in the looks of the time when it was so."""
    looks = watched.looks
    left = min(len(looks.looks), max(LEAST_LOOKS, looks.within(over.took_ns)))
    anew_ns = looks.since_ns(left) if left else 0
    return msgspec.structs.replace(watched, by_window=_Watched(watched.job).by_window, anew_ns=anew_ns)


def _by_steps(watched: _Watched, alive: Sequence[RankHistory], before: _Slow | None, seen: NodeHistory) -> _Slow | None:
    lagging = who_lags(watched.lagging)
    if lagging is None:
        return None
    ranks = (lagging.rank,)
    same = before is not None and before.ranks == ranks
    behind = f"{lagging.lags[-1]} steps behind the median of its job, and more at every look"
    reason = SlowReason(f"rank {lagging.rank} falls behind: {behind}", why=why_slow(lagging.rank, alive, seen))
    since_ns = before.since_ns if before and same else seen.at_ns - LAG_LOOKS * SECOND_NS
    return _Slow(watched.job, ranks, since_ns, same, reason)


def _before(looks: Looks, members: Sequence[PeerRank], window: int) -> list[tuple[int, Column]]:
    return [(member.rank, looks.column_before(member, window)) for member in members]
