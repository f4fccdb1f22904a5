"""A rank that holds a moving job back: the one that waits least among its peers, or whose steps fall behind."""

from collections.abc import Sequence
from statistics import median

import msgspec

from stallwatch.config import SlowSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.limits import SECOND_NS
from stallwatch.detectors.waiting import CONFIRM_NATS, WINDOWS, Least, who_waits_least
from stallwatch.detectors.why_slow import why_slow
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobKey

_HOLD_TICKS = 10  # a finding outlives single looks that dissent
_LAG_LOOKS = 8
_LAG_STEPS = 10
_SETTLE_STEPS = 3  # the first steps compile and warm up, each rank as it will


class _Watched(msgspec.Struct, frozen=True):
    job: JobKey
    rank: int
    pid: int
    role: tuple[int, ...] = ()  # collectives per group since it began: ranks with other programs are no peers
    pending: bool = False  # at the last fresh pulse
    looks: tuple[bool, ...] = ()  # did it stand in a collective just before the job moved? newest last
    lags: tuple[int, ...] = ()  # steps behind the median, newest last


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
        known = {(w.job, w.rank, w.pid): w for w in state.watched}
        watched: list[_Watched] = []
        slow: list[_Slow] = []
        for job, ranks in seen.jobs():
            alive = [rank for rank in ranks if rank.alive and rank.readable]
            moved = any(rank.moved for rank in alive)
            of_job = _watch(known, job, alive, moved=moved)
            watched += of_job
            before = next((s for s in state.slow if s.job == job), None)
            now = self._judge(job, of_job, alive, before, seen) if moved else None
            if now:
                slow.append(now)
            elif before and before.quiet_ticks < _HOLD_TICKS:
                slow.append(msgspec.structs.replace(before, quiet_ticks=before.quiet_ticks + moved))
        return SlowState(tuple(watched), tuple(slow)), tuple(self._finding(s) for s in slow)

    def _judge(
        self, job: JobKey, watched: list[_Watched], alive: list[RankHistory], before: _Slow | None, seen: NodeHistory
    ) -> _Slow | None:
        least = _least_of_peers(watched, self._slow.minimum_share)
        if least is not None:
            rank, strong, looks = least.rank, least.nats >= CONFIRM_NATS, least.looks
            reason, cost = _waits_least(least, alive, seen)
        else:
            lagging = _who_lags(watched)
            if lagging is None:
                return None
            rank, strong, looks, cost = lagging.rank, True, _LAG_LOOKS, 0.0
            reason = (
                f"rank {rank} falls behind: {lagging.lags[-1]} steps behind the median of its job, and more at "
                f"every look{why_slow(rank, alive, seen)}"
            )
        same = before is not None and before.rank == rank
        since_ns = before.since_ns if before and same else seen.at_ns - looks * SECOND_NS
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


def _watch(
    known: dict[tuple[JobKey, int, int], _Watched], job: JobKey, alive: Sequence[RankHistory], *, moved: bool
) -> list[_Watched]:
    steps = sorted(rank.heartbeat.step for rank in alive if rank.heartbeat and rank.heartbeat.step is not None)
    watched = []
    for rank in alive:
        sample = rank.sample
        before = known.get((job, sample.rank, sample.pid), _Watched(job, sample.rank, sample.pid))
        looks, lags = before.looks, before.lags
        # A phase is its own kind of time, and so is the start.
        if moved and rank.groups and not rank.phase and _settled(rank):
            looks = (*looks, before.pending)[-WINDOWS[-1] :]
        if steps and rank.heartbeat and rank.heartbeat.step is not None and not rank.phase:
            lags = (*lags, steps[len(steps) // 2] - rank.heartbeat.step)[-_LAG_LOOKS:]
        role = tuple(group.enqueued for group in rank.groups)
        pending = rank.pending if rank.pulsed else before.pending
        watched.append(_Watched(job, sample.rank, sample.pid, role, pending, looks, lags))
    return watched


def _settled(rank: RankHistory) -> bool:
    return rank.heartbeat is not None and (rank.heartbeat.step is None or rank.heartbeat.step > _SETTLE_STEPS)


def _least_of_peers(watched: Sequence[_Watched], minimum_share: float) -> Least | None:
    """Compare each rank with those that run the same program: stages of a pipeline wait unequally by design."""
    best: Least | None = None
    left = list(watched)
    while left:
        peers = [w for w in left if _same_role(w.role, left[0].role)]
        left = [w for w in left if w not in peers]
        found = who_waits_least([(w.rank, w.looks) for w in peers], minimum_share)
        if found is not None and (best is None or found.nats > best.nats):
            best = found
    return best


def _same_role(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """The counts that ranks of one program have differ by what a step in progress holds, not by a part of them."""
    return len(one) == len(other) and all(
        abs(a - b) <= max(64, 0.02 * max(a, b)) for a, b in zip(sorted(one), sorted(other), strict=True)
    )


def _waits_least(least: Least, alive: Sequence[RankHistory], seen: NodeHistory) -> tuple[str, float]:
    durations = [d for r in alive if r.heartbeat for d in r.heartbeat.step_durations_ns]
    step_seconds = median(durations) / SECOND_NS if durations else 0.0
    cost = (least.peers_share - least.share) * step_seconds
    price = f"; it costs the job about {cost:.2g} s of each step of {step_seconds:.2g} s" if cost else ""
    reason = (
        f"rank {least.rank} holds the others back: in the last {least.looks} looks they stood waiting in a collective "
        f"{least.peers_share:.0%} of the time, rank {least.rank} {least.share:.0%}{price}"
        f"{why_slow(least.rank, alive, seen)}"
    )
    return reason, cost


def _who_lags(watched: Sequence[_Watched]) -> _Watched | None:
    """Return the one rank whose step number falls further and further behind the median of its job."""
    late = [
        w
        for w in watched
        if len(w.lags) >= _LAG_LOOKS
        and w.lags[-1] >= _LAG_STEPS
        and all(a < b for a, b in zip(w.lags, w.lags[1:], strict=False))
    ]
    return late[0] if len(late) == 1 and len(watched) >= 3 else None
