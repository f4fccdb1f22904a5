"""A rank that holds a moving job back: the one that waits least among its peers, or whose steps fall behind."""

from collections.abc import Sequence
from statistics import median

import msgspec

from stallwatch.config import SlowSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.limits import SECOND_NS
from stallwatch.detectors.looks import Looks, Member, looked, peers_of
from stallwatch.detectors.waiting import CONFIRM_NATS, LEAST_LOOKS, SPAN_NS, WINDOWS, Least, is_due, who_waits_least
from stallwatch.detectors.why_slow import why_slow
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobKey

_HOLD_TICKS = 10  # a finding outlives single looks that dissent
_LAG_LOOKS = 8
_LAG_STEPS = 10


class _Lagging(msgspec.Struct, frozen=True):
    rank: int
    pid: int
    lags: tuple[int, ...] = ()  # steps behind the median, newest last


class _Watched(msgspec.Struct, frozen=True):
    job: JobKey
    looks: Looks = Looks()
    lagging: tuple[_Lagging, ...] = ()
    # By the shortest window that spans enough time, then by WINDOWS.
    by_window: tuple[Least | None, ...] = (None,) * (1 + len(WINDOWS))

    @property
    def least(self) -> Least | None:
        """The one that some window tells best."""
        return max((least for least in self.by_window if least), key=lambda one: (one.sure, one.nats), default=None)


class _Slow(msgspec.Struct, frozen=True):
    job: JobKey
    rank: int
    since_ns: int
    confirmed: bool
    reason: str
    cost_seconds: float
    quiet_ticks: int = 0


class SlowState(msgspec.Struct, frozen=True):
    watched: tuple[_Watched, ...] = ()
    slow: tuple[_Slow, ...] = ()


class SlowDetector:
    name = "slow"

    def __init__(self, slow: SlowSection) -> None:
        self._slow = slow

    def start(self) -> SlowState:
        return SlowState()

    def step(self, state: SlowState, seen: NodeHistory) -> tuple[SlowState, tuple[Finding, ...]]:
        if not self._slow.enabled:
            return state, ()
        known = {watched.job: watched for watched in state.watched}
        watched: list[_Watched] = []
        slow: list[_Slow] = []
        for job, ranks in seen.jobs():
            alive = [rank for rank in ranks if rank.alive and rank.heartbeat is not None]
            moved = any(rank.moved for rank in alive)
            of_job = self._watch(known.get(job, _Watched(job)), alive)
            watched.append(of_job)
            before = next((s for s in state.slow if s.job == job), None)
            now = self._judge(of_job, alive, before, seen) if moved else None
            if now:
                slow.append(now)
            elif before and before.quiet_ticks < _HOLD_TICKS:
                slow.append(msgspec.structs.replace(before, quiet_ticks=before.quiet_ticks + moved))
        return SlowState(tuple(watched), tuple(slow)), tuple(self._finding(s) for s in slow)

    def _watch(self, before: _Watched, alive: Sequence[RankHistory]) -> _Watched:
        looks = looked(before.looks, alive)
        by_window = before.by_window
        if looks.count != before.looks.count:
            shortest = max(LEAST_LOOKS, looks.within(SPAN_NS))
            begun_anew = looks.count < before.looks.count
            by_window = (
                self._least(looks, shortest),
                *(
                    least
                    if window > shortest and not begun_anew and not is_due(window, before.looks.count, looks.count)
                    else self._least(looks, window if window > shortest else 0)
                    for window, least in zip(WINDOWS, by_window[1:], strict=True)
                ),
            )
        return _Watched(before.job, looks, _lags(before.lagging, alive), by_window)

    def _least(self, looks: Looks, window: int) -> Least | None:
        if not window or len(looks.looks) < window:
            return None
        found = (
            self._least_of(looks, peers, window, surely=surely)
            for peers in peers_of(looks.members)
            for surely in ((False, True) if looks.nccl else (True,))
        )
        return max((least for least in found if least), key=lambda least: (least.sure, least.nats), default=None)

    def _least_of(self, looks: Looks, peers: Sequence[Member], window: int, *, surely: bool) -> Least | None:
        columns = [(peer.rank, looks.column(peer, window, surely=surely)) for peer in peers]
        least = who_waits_least(columns, self._slow.minimum_share, looks.since_ns(window))
        return least if least is None or surely else msgspec.structs.replace(least, sure=False)

    def _judge(
        self, watched: _Watched, alive: list[RankHistory], before: _Slow | None, seen: NodeHistory
    ) -> _Slow | None:
        job, least = watched.job, watched.least
        if least is not None:
            rank, strong, begun_ns = least.rank, least.sure and least.nats >= CONFIRM_NATS, least.since_ns
            reason, cost = _waits_least(least, alive, seen, "at most" if watched.looks.nccl else "about")
        else:
            lagging = _who_lags(watched.lagging)
            if lagging is None:
                return None
            rank, strong, cost = lagging.rank, True, 0.0
            begun_ns = seen.at_ns - _LAG_LOOKS * SECOND_NS
            reason = (
                f"rank {rank} falls behind: {lagging.lags[-1]} steps behind the median of its job, and more at "
                f"every look{why_slow(rank, alive, seen)}"
            )
        same = before is not None and before.rank == rank
        since_ns = before.since_ns if before and same else begun_ns
        confirmed = (strong and same) or bool(before and same and before.confirmed)
        return _Slow(job, rank, since_ns, confirmed, reason, cost)

    def _finding(self, slow: _Slow) -> Finding:
        return Finding(
            detector=self.name,
            stage="confirmed" if slow.confirmed else "suspect",
            job=slow.job,
            ranks=(slow.rank,),
            since_ns=slow.since_ns,
            limit_seconds=0.0,
            reason=slow.reason,
            cost_seconds=slow.cost_seconds,
        )


def _lags(before: Sequence[_Lagging], alive: Sequence[RankHistory]) -> tuple[_Lagging, ...]:
    known = {(one.rank, one.pid): one.lags for one in before}
    steps = sorted(rank.heartbeat.step for rank in alive if rank.heartbeat and rank.heartbeat.step is not None)
    lagging = []
    for rank in alive:
        lags = known.get((rank.sample.rank, rank.sample.pid), ())
        if rank.readable and rank.heartbeat and rank.heartbeat.step is not None and not rank.phase:
            lags = (*lags, steps[len(steps) // 2] - rank.heartbeat.step)[-_LAG_LOOKS:]
        lagging.append(_Lagging(rank.sample.rank, rank.sample.pid, lags))
    return tuple(lagging)


def _waits_least(least: Least, alive: Sequence[RankHistory], seen: NodeHistory, about: str) -> tuple[str, float]:
    durations = [d for r in alive if r.heartbeat for d in r.heartbeat.step_durations_ns]
    step_seconds = median(durations) / SECOND_NS if durations else 0.0
    cost = (least.peers_share - least.share) * step_seconds
    price = f"; it costs the job {about} {cost:.2g} s of each step of {step_seconds:.2g} s" if cost else ""
    reason = (
        f"rank {least.rank} holds the others back: in the last {least.looks} looks they stood waiting in a collective "
        f"{least.peers_share:.0%} of the time, rank {least.rank} {least.share:.0%}{price}"
        f"{why_slow(least.rank, alive, seen)}"
    )
    return reason, cost


def _who_lags(lagging: Sequence[_Lagging]) -> _Lagging | None:
    """Return the one rank whose step number falls further and further behind the median of its job."""
    late = [
        one
        for one in lagging
        if len(one.lags) >= _LAG_LOOKS
        and one.lags[-1] >= _LAG_STEPS
        and all(a < b for a, b in zip(one.lags, one.lags[1:], strict=False))
    ]
    return late[0] if len(late) == 1 and len(lagging) >= 3 else None
