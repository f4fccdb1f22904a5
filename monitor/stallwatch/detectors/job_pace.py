"""A whole job that is slower than its own past: its steps became longer at once, on every rank, and stay so.

Slow drift is no finding (sequences grow, batches ramp up): what is compared are the last minutes with those before.
"""

from collections.abc import Sequence
from statistics import median

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Slowness

_BLOCK_NS = 60 * SECOND_NS
_BLOCK_STEPS = 6
_BASE_BLOCKS = 5
_RECENT_BLOCKS = 3
_WARM_UP_BLOCKS = 2  # compilation, caches, learning of kernels
_SLOWER = 1.5
_AGAIN = 1.2
_CONFIRM_NS = 600 * SECOND_NS
_NEW_NORMAL_NS = 3600 * SECOND_NS


class _Block(msgspec.Struct, frozen=True):
    step_seconds: float
    waiting_share: float  # of the looks at its ranks, those that stood in a collective


class _Pace(msgspec.Struct, frozen=True):
    job: JobKey
    began_ns: int = 0
    steps: tuple[int, ...] = ()  # of the block under way
    looks: int = 0
    waits: int = 0
    skipped: int = 0
    blocks: tuple[_Block, ...] = ()
    base: _Block | None = None  # what it was before it became slow
    slow_ns: int | None = None


class PaceState(msgspec.Struct, frozen=True):
    """The pace of each job."""

    jobs: tuple[_Pace, ...] = ()


class JobPaceDetector:
    """A whole job that has become slower than it was."""

    name = "slow_job"

    def start(self) -> PaceState:
        """The state before the first tick: no pace is learned."""
        return PaceState()

    def step(self, state: PaceState, seen: NodeHistory) -> tuple[PaceState, tuple[Finding, ...]]:
        """Given steps, return a finding for each job that is slower than it was over many steps of its own."""
        known = {pace.job: pace for pace in state.jobs}
        paces, findings = [], []
        for job, ranks in seen.jobs():
            pace = known.get(job, _Pace(job, seen.at_ns))
            if any(not rank.alive for rank in ranks):
                continue  # it is ending: a story of its own
            pace = _decided(_counted(pace, ranks, seen.at_ns), seen.at_ns)
            paces.append(pace)
            if pace.slow_ns is not None and pace.base is not None:
                findings.append(self._finding(pace, pace.base, ranks, seen.at_ns))
        return PaceState(tuple(paces)), tuple(findings)

    def _finding(self, pace: _Pace, base: _Block, ranks: tuple[RankHistory, ...], at_ns: int) -> Finding:
        assert pace.slow_ns is not None
        now = _middle(pace.blocks[-_RECENT_BLOCKS:])
        return Finding(
            detector=self.name,
            stage="confirmed" if at_ns - pace.slow_ns >= _CONFIRM_NS else "suspect",
            job=pace.job,
            ranks=tuple(rank.sample.rank for rank in ranks),
            since_ns=pace.slow_ns,
            limit_seconds=_SLOWER * base.step_seconds,
            reason=f"the whole job is slower than its own past: a step takes {now.step_seconds:.3g} s, before "
            f"{base.step_seconds:.3g} s{_share(base, now)}",
            slowness=_slowness(base, now, (at_ns - pace.slow_ns) / SECOND_NS),
            due_ns=pace.slow_ns + _CONFIRM_NS,
        )


def _counted(pace: _Pace, ranks: Sequence[RankHistory], at_ns: int) -> _Pace:
    rank = ranks[0]
    stepping = not rank.phase and rank.heartbeat is not None and rank.readable
    steps = pace.steps
    if stepping and rank.ticks.stepped and rank.heartbeat and rank.heartbeat.step_durations_ns:
        steps = (*steps, rank.heartbeat.step_durations_ns[-1])
    fresh = [r for r in ranks if r.ticks.pulsed and r.groups and not r.phase]
    looks, waits = pace.looks + len(fresh), pace.waits + sum(r.pending for r in fresh)
    if at_ns - pace.began_ns < _BLOCK_NS or len(steps) < _BLOCK_STEPS:
        return msgspec.structs.replace(pace, steps=steps, looks=looks, waits=waits)
    blocks, skipped = pace.blocks, pace.skipped + 1
    if skipped > _WARM_UP_BLOCKS:
        block = _Block(median(steps) / SECOND_NS, waits / looks if looks else 0.0)
        blocks = (*blocks, block)[-(_BASE_BLOCKS + _RECENT_BLOCKS) :]
    return _Pace(pace.job, at_ns, skipped=skipped, blocks=blocks, base=pace.base, slow_ns=pace.slow_ns)


def _decided(pace: _Pace, at_ns: int) -> _Pace:
    if pace.slow_ns is not None and pace.base is not None:
        over = at_ns - pace.slow_ns > _NEW_NORMAL_NS or pace.blocks[-1].step_seconds < _AGAIN * pace.base.step_seconds
        return msgspec.structs.replace(pace, base=None, slow_ns=None, blocks=()) if over else pace
    if len(pace.blocks) < _BASE_BLOCKS + _RECENT_BLOCKS:
        return pace
    base, recent = _middle(pace.blocks[:_BASE_BLOCKS]), pace.blocks[-_RECENT_BLOCKS:]
    if min(block.step_seconds for block in recent) < _SLOWER * base.step_seconds:
        return pace
    # A step, not a slope: the blocks before were alike.
    alike = max(b.step_seconds for b in pace.blocks[:_BASE_BLOCKS]) < _AGAIN * base.step_seconds
    return msgspec.structs.replace(pace, base=base, slow_ns=at_ns) if alike else pace


def _slowness(base: _Block, now: _Block, seconds: float) -> Slowness:
    cost = max(now.step_seconds - base.step_seconds, 0.0)
    return Slowness(cost, cost, cost, now.step_seconds, _RECENT_BLOCKS * _BLOCK_STEPS, seconds)


def _middle(blocks: Sequence[_Block]) -> _Block:
    return _Block(median(b.step_seconds for b in blocks), median(b.waiting_share for b in blocks))


def _share(base: _Block, now: _Block) -> str:
    if not (base.waiting_share or now.waiting_share):
        return ""
    text = f"; ranks stand in a collective {now.waiting_share:.0%} of the time, before {base.waiting_share:.0%}"
    if now.waiting_share - base.waiting_share > 0.15:
        return f"{text}: consistent with a slower fabric"
    return f"{text}: communication does not explain it; consistent with slower input, storage or clocks"
