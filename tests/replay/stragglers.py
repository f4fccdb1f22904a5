"""A synchronous job, step by step: ranks compute, meet in a collective, go on together. One of them may be slower.

Under NCCL two things are otherwise than under gloo: torch notes completion only when its watchdog looks, every 0.1 s
and in each rank at its own time; and where nothing makes the host wait it runs ahead of its device by some steps.
"""

import functools
import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from stallwatch.hook.layout import LOOK_SLOTS
from stallwatch.hook.pulse import LOOKS_PER_PULSE, next_instant, number_of
from stallwatch.model.process import ChildProcess
from stallwatch.model.snapshot import CounterLook, GroupCounter, NodeSnapshot
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import START_NS, heartbeat
from tests.builders.node import sample, snapshot

By = Literal["sleep", "gil", "cpu contention", "data loader", "nothing", "pipeline", "experts", "logging"]
# What is uneven by design, beside what a fault adds: each rank's own load, drawn anew after so many seconds
# ("experts"); the same where the ranks share one amount of work ("routed"); each step's own length ("lengths"); one
# rank after another that needs longer for a while ("wanders"); one that gets more of the others' work for a while
# ("surge"); rank 0 that evaluates, or saves, now and then, while the others wait for it.
Design = Literal["even", "experts", "routed", "lengths", "wanders", "surge", "evaluates", "saves"]
_SELDOM: dict[Design, tuple[float, float]] = {"evaluates": (0.02, 10.0), "saves": (0.025, 5.0)}  # a step, its length
Backend = Literal["gloo", "nccl", "nccl ahead"]
COMPUTE_SECONDS = 0.17
COLLECTIVE_SECONDS = 0.03
JITTER = 0.04
WATCHDOG_SECONDS = 0.1  # ProcessGroupNCCL: how often each rank's watchdog looks for completed work
STEPS_AHEAD = 3
RELEASED_SECONDS = 0.002  # before its collective a rank gives up the GIL that it has held, and its hook looks at once
LOGGING_SECONDS = 0.02  # what rank 0 does for each step, of the usual length, while its device has enough to do
SLOW_SECONDS = 20.0  # a rank that needs 30 % more is to be told in that time: what lasts as long is a slow rank
_SLOW_BY = 0.1  # slow.cost_share
_KEPT_STEPS = 63  # as the hook's ring has it


class Job(NamedTuple):
    by: By
    ranks: int
    slowdown: float  # of one rank: 0.3 is 30 % more
    slow_rank: int
    onset_seconds: float
    backend: Backend = "gloo"
    step_scale: float = 1.0  # times COMPUTE_SECONDS and COLLECTIVE_SECONDS
    design: Design = "even"
    spread: float = 0.5  # of a rank's own load, of a step
    rhythm_seconds: float = 5.0
    design_seed: int = 0
    lasts_seconds: float = math.inf  # how long the rank is slow
    jitter: float = JITTER  # of each rank's own time for a step
    heavy: bool = False  # a few steps are much longer than all others
    stages: bool = False  # its ranks are stages of a pipeline, one of which may be slow: the ends have half the work
    # Each rank begins a step so long after its last, by its own clock: a loader that gives so many batches a second, an
    # environment that has a rate. Who was late once stays late, and the job's steps are as long as they were.
    pace_seconds: float = 0.0
    stands_seconds: float = 0.0  # how long the slow rank stands, once, at the onset

    @property
    def has_stages(self) -> bool:
        """Whether its ranks are stages of a pipeline."""
        return self.stages or self.by == "pipeline"

    def is_slow(self, rank: int, now: float) -> bool:
        """Whether that is so of this rank at a moment of the job."""
        return rank == self.slow_rank and self.onset_seconds <= now < self.onset_seconds + self.lasts_seconds


class _Rank:
    """One rank: when it enqueued each step's collective, what its record says."""

    def __init__(self, rank: int, rng: random.Random) -> None:
        self.rank = rank
        self.enqueued: list[float] = []  # by step, seconds; the first are forgotten in time
        self.began = 0.0  # its last step, where it has a pace
        self.held: list[tuple[float, float]] = []  # from when to when it has held the GIL: its hook cannot look then
        self.instant_ns = next_instant(int(rng.uniform(0, 1) * SECOND_NS))
        self.look_at = self.instant_ns / SECOND_NS
        self.watchdog_phase = rng.uniform(0, WATCHDOG_SECONDS)
        self.pulses = self.ran_ticks = self.pulse_ns = 0
        self.groups: tuple[GroupCounter, ...] = ()
        self.looks: tuple[CounterLook, ...] = ()


class _Course:
    """The job's steps on the clock."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        self.job, self.rng = job, rng
        self.ranks = [_Rank(rank, rng) for rank in range(job.ranks)]
        self.done: list[float] = []  # when each step's collective had completed
        self.has_stood = not job.stands_seconds
        self.forgotten = 0

    def until(self, seconds: float) -> None:
        job = self.job
        ahead = STEPS_AHEAD if job.backend == "nccl ahead" else 1
        while not self.done or self.done[-1] <= seconds:
            # A host goes on when its queue has room: the step that many before has completed.
            room = self.done[-ahead] if len(self.done) >= ahead else 0.0
            for rank in self.ranks:
                began = self._begins(rank, max(room, rank.enqueued[-1] if rank.enqueued else 0.0))
                own = _compute(job, rank.rank, began, self.rng)
                rank.enqueued.append(began + own)
                if job.by == "gil" and job.is_slow(rank.rank, began):
                    let_go = began + own - RELEASED_SECONDS
                    rank.held = [*rank.held[-_KEPT_STEPS:], (let_go - own * job.slowdown / (1 + job.slowdown), let_go)]
            last = max(rank.enqueued[-1] for rank in self.ranks)
            device = COMPUTE_SECONDS * job.step_scale if ahead > 1 else 0.0  # it computes what was enqueued before
            free = self.done[-1] + device if self.done else 0.0
            self.done.append(max(last, free) + COLLECTIVE_SECONDS * job.step_scale)

    def _begins(self, rank: _Rank, may: float) -> float:
        """When a rank begins its next step, which it may at this moment."""
        job = self.job
        if not self.has_stood and rank.rank == job.slow_rank and may >= job.onset_seconds:
            self.has_stood = True
            may = max(may, rank.began + job.pace_seconds) + job.stands_seconds
        if not job.pace_seconds:
            return may
        rank.began = max(may, rank.began + job.pace_seconds)
        return rank.began

    def forget(self) -> None:
        """What is long past: only counts matter of it."""
        if len(self.done) > 4 * _KEPT_STEPS:
            self.forgotten += len(self.done) - 2 * _KEPT_STEPS
            for times in (self.done, *(rank.enqueued for rank in self.ranks)):
                del times[: -2 * _KEPT_STEPS]

    def completed(self, at: float) -> int:
        return self.forgotten + bisect_right(self.done, at)

    def counted(self, rank: _Rank) -> list[float]:
        """When a rank counted its steps: a host that runs ahead of its device does not wait for it."""
        return rank.enqueued if self.job.backend == "nccl ahead" else self.done


def play(job: Job, seconds: float, seed: int) -> Iterator[NodeSnapshot]:
    """Yield a snapshot a second."""
    rng = random.Random(seed)
    course = _Course(job, rng)
    for second in range(1, int(seconds) + 1):
        course.until(second + 0.1)
        for rank in course.ranks:
            while rank.look_at <= second:
                if free := [free for held, free in rank.held if held <= rank.look_at < free]:
                    rank.look_at = free[0]
                else:
                    _look_at_counters(job, rank, course, rng)
        yield _look(job, course, second, rng)
        course.forget()


def _compute(job: Job, rank: int, now: float, rng: random.Random) -> float:
    seconds = COMPUTE_SECONDS * job.step_scale * _by_chance(job, rng)
    if job.backend == "nccl ahead":
        seconds *= 0.6  # the host is faster than the device, or it could not run ahead
    seconds *= 1 + _by_design(job, rank, now, rng)
    if job.by == "experts":
        return seconds * rng.lognormvariate(0, 0.25)  # whose tokens are many changes from step to step
    if job.has_stages and rank in (0, job.ranks - 1):
        seconds *= 0.5
    if job.by == "logging":
        return seconds + (LOGGING_SECONDS * job.step_scale if rank == 0 else 0.0)
    if job.by not in ("nothing", "pipeline") and job.is_slow(rank, now):
        slower = job.slowdown
        if job.by == "data loader":
            slower = 10 * job.slowdown if rng.random() < 0.1 else 0.0  # every tenth batch is not there in time
        elif job.by == "cpu contention":
            slower *= rng.uniform(0, 2)
        if job.backend == "nccl ahead":  # as much more than the step takes, or the queue hides it
            return COMPUTE_SECONDS * job.step_scale * (1 + slower) + COLLECTIVE_SECONDS * job.step_scale
        return seconds * (1 + slower)
    return seconds


def _by_chance(job: Job, rng: random.Random) -> float:
    if job.heavy:
        return max(0.2, 1 + job.jitter * (rng.paretovariate(2.5) - 1.67))
    return rng.lognormvariate(0, job.jitter)


def _by_design(job: Job, rank: int, now: float, rng: random.Random) -> float:
    """What this rank has to do beside its usual work, as a part of it."""
    if job.design == "lengths":
        return min(job.spread * rng.lognormvariate(-0.7, 0.8), 3.0)
    if job.design == "even":
        return 0.0
    if job.design in _SELDOM:
        often, long = _SELDOM[job.design]
        return long if rank == 0 and rng.random() < often else 0.0
    if job.design in ("experts", "routed", "wanders"):
        return _drawn(job, rank, now)
    if job.design == "surge" and 0 <= now - job.onset_seconds < job.rhythm_seconds:
        return job.spread if rank == job.slow_rank else -job.spread / (job.ranks - 1)
    return 0.0


def slow_whiles(job: Job, seconds: float) -> list[tuple[int, float, float]]:
    """(rank, from, to) of the whiles in which a design that is drawn gives one rank more than all others for so long
    that it is a slow rank by any measure: nobody can know at their end that another's turn comes."""
    whiles: list[tuple[int, float, float]] = []
    if job.design not in ("experts", "routed", "wanders"):
        return whiles
    for now in (place * job.rhythm_seconds for place in range(int(seconds / job.rhythm_seconds) + 1)):
        mine = sorted((_drawn(job, rank, now), rank) for rank in range(job.ranks))
        (least, _), (most, rank) = mine[-2], mine[-1]
        if most - least < _SLOW_BY * (1 + least):
            continue
        if whiles and whiles[-1][0] == rank and whiles[-1][2] == now:
            whiles[-1] = (rank, whiles[-1][1], now + job.rhythm_seconds)
        else:
            whiles.append((rank, now, now + job.rhythm_seconds))
    return [one for one in whiles if one[2] - one[1] >= SLOW_SECONDS]


def _drawn(job: Job, rank: int, now: float) -> float:
    """What a design that is drawn gives this rank beside its usual work, as a part of it."""
    loads = _loads(job.ranks, job.design_seed, int(now / job.rhythm_seconds))
    if job.design == "experts":
        return job.spread * loads[rank]
    if job.design == "routed":
        return job.spread * (loads[rank] - sum(loads) / job.ranks)
    return job.spread if rank == int(loads[0] * job.ranks) else 0.0


@functools.lru_cache(maxsize=64)
def _loads(ranks: int, seed: int, turn: int) -> tuple[float, ...]:
    draw = random.Random(f"{seed} {turn}")
    return tuple(draw.random() for _ in range(ranks))


def _look_at_counters(job: Job, rank: _Rank, course: _Course, rng: random.Random) -> None:
    at = rank.look_at
    enqueued = course.forgotten + bisect_right(rank.enqueued, at)
    noted = at
    if job.backend != "gloo":
        noted = at - (at - rank.watchdog_phase) % WATCHDOG_SECONDS
    completed = course.completed(noted)
    recorder = "gloo" if job.backend == "gloo" else "nccl"
    groups = [GroupCounter(recorder, 0, enqueued, completed)]
    if job.has_stages:  # the first and the last stage have one neighbour, the others two
        sends = (2 if rank.rank in (0, job.ranks - 1) else 4) * 4
        done = completed if recorder == "nccl" else enqueued
        groups.append(GroupCounter(recorder, 1, sends * enqueued, sends * done))
    step = enqueued if job.backend == "nccl ahead" else course.completed(at)
    number, at_ns = number_of(rank.instant_ns), START_NS + int(at * SECOND_NS)
    counts = (sum(group.enqueued for group in groups), sum(group.completed for group in groups))
    both = (0, 0, *counts) if recorder == "gloo" else (*counts, 0, 0)
    rank.looks = (*rank.looks, CounterLook(number, at_ns, step, *both))[-LOOK_SLOTS:]
    if number % LOOKS_PER_PULSE == 0:
        rank.groups, rank.pulse_ns = tuple(groups), at_ns
        rank.pulses += 1
    # At the moment that all ranks have in common, later by what the machine and the GIL take.
    late = rng.expovariate(1 / 0.02) if rng.random() < 0.03 else rng.expovariate(1 / 0.001)
    rank.instant_ns = next_instant(int(at * SECOND_NS))
    rank.look_at = rank.instant_ns / SECOND_NS + late


def _look(job: Job, course: _Course, second: int, rng: random.Random) -> NodeSnapshot:
    samples = []
    for rank in course.ranks:
        counted = course.counted(rank)
        steps = bisect_right(counted, second)
        done = counted[max(0, steps - _KEPT_STEPS) : steps]
        durations = tuple(int((after - before) * SECOND_NS) for before, after in itertools.pairwise(done))
        slow = job.is_slow(rank.rank, second)
        beat = heartbeat(
            rank.rank,
            step=course.forgotten + steps,
            last_step_ns=START_NS + int(done[-1] * SECOND_NS) if done else None,
            step_durations_ns=durations,
            pulse_count=rank.pulses,
            pulse_ns=rank.pulse_ns,
            groups=rank.groups,
            looks=rank.looks,
            world_size=job.ranks,
        )
        samples.append(sample(rank.rank, beat, world_size=job.ranks, **_process(job, rank, slow, rng)))
    return msgspec.structs.replace(snapshot(second, samples, tick=second), tick=second)


def _process(job: Job, rank: _Rank, slow: bool, rng: random.Random) -> dict[str, Any]:
    contended = slow and job.by == "cpu contention"
    rank.ran_ticks += 50 if contended else 90
    loads = 0.9 if slow and job.by == "data loader" else 0.15
    return {
        "main_thread_state": "R" if contended or rng.random() < 0.3 else "S",
        "main_thread_cpu_ticks": rank.ran_ticks,
        "children": tuple(ChildProcess(9000 + n, "D" if rng.random() < loads else "S", "python", 0) for n in range(4)),
    }
