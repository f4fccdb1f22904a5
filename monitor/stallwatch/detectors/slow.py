"""A rank that holds a moving job back.

In synchronous training all ranks have the same step time; the slow one is that which others wait for and which itself
hardly ever waits. Each fresh pulse tells whether a rank stands in a collective (enqueued and not completed): over many
looks this is the share of its time spent waiting. In asynchronous jobs the late rank's step number falls behind.
"""

import math
from collections.abc import Sequence

import msgspec

from stallwatch.config import SlowSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.limits import SECOND_NS
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobKey

_WINDOWS = (8, 16, 32, 64)  # looks; a large effect shows in few, a small one needs many
# Evidence in nats (looks × Kullback-Leibler divergence of the two shares): chance gives 7 once in a thousand windows.
_SUSPECT_NATS = 7.0
_CONFIRM_NATS = 9.0
_HOLD_TICKS = 5  # a finding outlives single looks that dissent
_LAG_STEPS = 10


class _Watched(msgspec.Struct, frozen=True):
    job: JobKey
    rank: int
    pid: int
    looks: tuple[bool, ...] = ()  # did it stand in a collective? newest last
    lags: tuple[int, ...] = ()  # steps behind the median, newest last


class _Slow(msgspec.Struct, frozen=True):
    job: JobKey
    ranks: tuple[int, ...]
    since_ns: int
    confirmed: bool
    reason: str
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
        known = {(w.job, w.rank, w.pid): w for w in state.watched}
        watched: list[_Watched] = []
        slow: list[_Slow] = []
        for job, ranks in seen.jobs():
            of_job = _watch(known, job, ranks)
            watched += of_job
            before = next((s for s in state.slow if s.job == job), None)
            moving = any(rank.moved for rank in ranks)
            now = self._judge(job, of_job, before, seen.at_ns) if moving else None
            if now:
                slow.append(now)
            elif before and moving and before.quiet_ticks < _HOLD_TICKS:
                slow.append(msgspec.structs.replace(before, quiet_ticks=before.quiet_ticks + 1))
        return SlowState(tuple(watched), tuple(slow)), tuple(self._finding(s) for s in slow)

    def _judge(self, job: JobKey, watched: list[_Watched], before: _Slow | None, at_ns: int) -> _Slow | None:
        found = _who_waits_least(watched, self._slow.minimum_share) or _who_lags(watched)
        if not found:
            return None
        rank, nats, looks, reason = found
        same = before is not None and before.ranks == (rank,)
        since_ns = before.since_ns if before and same else at_ns - looks * SECOND_NS
        confirmed = (nats >= _CONFIRM_NATS and same) or bool(before and same and before.confirmed)
        return _Slow(job, (rank,), since_ns, confirmed, reason)

    def _finding(self, slow: _Slow) -> Finding:
        return Finding(
            detector=self.name,
            stage="confirmed" if slow.confirmed else "suspect",
            job=slow.job,
            ranks=slow.ranks,
            since_ns=slow.since_ns,
            limit_seconds=0.0,
            reason=slow.reason,
        )


def _watch(
    known: dict[tuple[JobKey, int, int], _Watched], job: JobKey, ranks: tuple[RankHistory, ...]
) -> list[_Watched]:
    alive = [rank for rank in ranks if rank.alive and rank.readable]
    steps = sorted(rank.heartbeat.step for rank in alive if rank.heartbeat and rank.heartbeat.step is not None)
    watched = []
    for rank in alive:
        sample = rank.sample
        before = known.get((job, sample.rank, sample.pid), _Watched(job, sample.rank, sample.pid))
        looks, lags = before.looks, before.lags
        # Only a fresh pulse is a look; a phase is its own kind of time.
        if rank.pulsed and rank.groups and not rank.phase:
            looks = (*looks, rank.pending)[-_WINDOWS[-1] :]
        if steps and rank.heartbeat and rank.heartbeat.step is not None:
            lags = (*lags, steps[len(steps) // 2] - rank.heartbeat.step)[-_WINDOWS[-1] :]
        watched.append(_Watched(job, sample.rank, sample.pid, looks, lags))
    return watched


def _who_waits_least(watched: Sequence[_Watched], minimum_share: float) -> tuple[int, float, int, str] | None:
    """Return (rank, nats, looks, reason) of the one rank that others wait for, over the most telling window."""
    best: tuple[int, float, int, str] | None = None
    for window in _WINDOWS:
        shares = sorted((sum(w.looks[-window:]) / window, w.rank) for w in watched if len(w.looks) >= window)
        if len(shares) < 2 or len(shares) < len(watched):
            return best
        least, rank = shares[0]
        # The second least must wait as the others do: otherwise it is an imbalance by design (stages, experts).
        peers = [share for share, _ in shares[1:]]
        second, typical = peers[0], peers[(len(peers) - 1) // 2]
        if typical - least < minimum_share or least > 0.5 * typical or second < 0.7 * peers[-1]:
            continue
        nats = window * _divergence(least, typical)
        if nats >= _SUSPECT_NATS and (best is None or nats > best[1]):
            reason = (
                f"rank {rank} holds the others back: in the last {window} looks they stood waiting in a collective "
                f"{typical:.0%} of the time, rank {rank} {least:.0%}"
            )
            best = (rank, nats, window, reason)
    return best


def _who_lags(watched: Sequence[_Watched]) -> tuple[int, float, int, str] | None:
    """Return the one rank whose step number falls further and further behind the median of its job."""
    window = _WINDOWS[0]
    late = [
        w
        for w in watched
        if len(w.lags) >= window
        and w.lags[-1] >= _LAG_STEPS
        and all(a < b for a, b in zip(w.lags[-window:], w.lags[-window + 1 :], strict=False))
    ]
    if len(late) != 1 or len(watched) < 3:
        return None
    rank, lag = late[0].rank, late[0].lags[-1]
    reason = f"rank {rank} falls behind: {lag} steps behind the median of its job, and more at every look"
    return rank, _CONFIRM_NATS, window, reason


def _divergence(share: float, typical: float) -> float:
    """Return the Kullback-Leibler divergence of two Bernoulli shares, in nats."""
    p, q = min(max(share, 1e-9), 1 - 1e-9), min(max(typical, 0.01), 0.99)
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
