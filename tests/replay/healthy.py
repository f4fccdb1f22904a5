"""Generates the behaviour of healthy jobs, as snapshots of a simulated clock: what a daemon must never tell about.

A job is a row of stretches; every rank goes through the same ones. Where the numbers come from: tests/replay/habits.py.
"""

import math
import random
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from stallwatch.hook.layout import LOOK_SLOTS
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import CounterLook, GroupCounter, JobKey, NodeSnapshot, ProcessEnd, RankSample
from tests.builders.clock import SECOND_NS
from tests.builders.heartbeat import heartbeat
from tests.builders.node import process
from tests.replay.habits import LONGEST_ALONE_SECONDS, Habits, habits

Doing = Literal[
    "load", "queue", "start", "step", "evaluate", "alone", "storage", "idle", "export", "hang", "death", "stop"
]
START_NS = 100_000 * SECOND_NS
EPOCH_GAP_SECONDS = 15.0
WATCHDOG_SECONDS = 0.1
LOOKS_PER_SECOND = 4
ELSEWHERE = 1_000_000  # a culprit on a node that is not seen
# What is done before the first step: no collective yet.
STARTS: frozenset[Doing] = frozenset({"load", "queue", "start"})
# In these nothing changes from tick to tick; of a long one the middle is seen every few seconds.
_SAME: frozenset[Doing] = frozenset({"load", "queue", "alone", "storage", "idle", "export"})
_MIDDLE_SECONDS, _MIDDLE_FROM, _MIDDLE_UNTIL = 10, 45, 15  # a tick; from the stretch's begin; to its end
FAULTS: tuple[Doing, ...] = ("hang", "death", "stop")


class Stretch(NamedTuple):
    """A time in which one thing is done. `culprit`: the rank that the others wait for, if they do."""

    doing: Doing
    seconds: float
    phase: str = ""
    culprit: int | None = None


class Fault(NamedTuple):
    doing: Doing
    rank: int
    at_seconds: float


class Moment(NamedTuple):
    snapshot: NodeSnapshot
    stretch: Stretch
    fault: Fault | None  # that has struck and lasts
    deadline_ns: int | None = None  # when torch would end the job


def stretches(rng: random.Random, job: Habits) -> Iterator[Stretch]:
    """One life of a job without an end."""

    def phase(name: str) -> str:
        return name if job.names_phases else ""

    yield Stretch("start", rng.uniform(5, 120))
    yield Stretch("alone", rng.uniform(5, 180), "", rng.randrange(job.ranks))  # it compiles, or rank 0 prepares data
    elapsed, evaluated, saved, stored = 0.0, 0.0, 0.0, 0.0
    next_storage = rng.expovariate(1.5 / 3600)
    while True:
        seconds = job.step_seconds * (1 + job.drift_per_hour * elapsed / 3600) * rng.lognormvariate(0, job.jitter)
        if rng.random() < job.long_share:
            seconds *= rng.uniform(2, 5)
        yield Stretch("step", seconds)
        elapsed += seconds
        if elapsed - evaluated > job.evaluates_every_seconds:
            evaluated = elapsed
            length = max(job.step_seconds * rng.uniform(5, 50), 3.0)
            if rng.random() < 0.7:
                yield Stretch("evaluate", length, phase("eval"))
            else:
                yield Stretch("alone", min(length, 240.0), phase("eval"), 0)
        if elapsed - saved > job.saves_every_seconds:
            saved = elapsed
            save_seconds = min(job.save_seconds * rng.uniform(0.8, 1.6), LONGEST_ALONE_SECONDS)
            yield Stretch("alone", save_seconds, phase("checkpoint"), 0)
        if elapsed - stored > next_storage:
            stored, next_storage = elapsed, rng.expovariate(1.5 / 3600)
            yield Stretch("storage", rng.uniform(5, 40), "", rng.randrange(job.ranks))
        if job.rollouts and rng.random() < 0.02:
            yield Stretch("idle", rng.uniform(10, 200), "rollout")


class _Life:
    """One life of a job on the clock."""

    def __init__(
        self, rng: random.Random, job: Habits, key: JobKey, began_ns: int, pid: int, plan: Iterator[Stretch]
    ) -> None:
        self.rng, self.job, self.key = rng, job, key
        self.plan = plan
        self.stretch = next(self.plan)
        self.since_ns, self.step, self.phase_since_ns = began_ns, 0, 0
        self.durations: tuple[int, ...] = ()
        self.last_step_ns: int | None = None
        self.done = 0  # collectives
        self.noted = [0] * job.ranks  # what each rank's recorder says of them
        self.batch = [1.0] * job.ranks  # of this step
        self.drawn: tuple[int, int] | None = None  # (step, collective) for which `arrives` was drawn
        self.arrives = [0.0] * job.ranks  # when ranks enqueue the next collective, as a share of the time to its end
        self.pulses = [0] * job.ranks
        self.tick = 1  # seconds
        self.looks: list[tuple[CounterLook, ...]] = [()] * job.ranks
        self.ends: dict[int, ProcessEnd] = {}
        world = job.world or job.ranks
        self.beats = [
            heartbeat(rank, pid=pid + rank, training_job=key.training_job, epoch=key.epoch, world_size=world)
            for rank in range(job.ranks)
        ]
        self.processes = [process(rank, pid=pid + rank) for rank in range(job.ranks)]
        self.pid = pid

    def advance(self, at_ns: int) -> None:
        while self.since_ns + int(self.stretch.seconds * SECOND_NS) <= at_ns:
            self.since_ns += int(self.stretch.seconds * SECOND_NS)
            if self.stretch.doing == "step":
                self._stepped()
            self._next()
        if self.stretch.doing in ("step", "evaluate"):
            self.done = max(self.done, self._done_at(at_ns))
        self._draw_arrivals(at_ns)
        for rank in range(self.job.ranks):
            late_ns = self.rng.uniform(0, WATCHDOG_SECONDS) * SECOND_NS if self.job.recorder == "nccl" else 0
            seen = self._done_at(at_ns - int(late_ns)) if self.stretch.doing in ("step", "evaluate") else self.done
            self.noted[rank] = min(max(self.noted[rank], seen), self.done)

    def look(self, at_ns: int) -> None:
        """Every hook looks at its counters, if it comes to it."""
        if self.stretch.doing in STARTS or self.stretch.phase:
            return
        recorder = self.job.recorder
        for rank in range(self.job.ranks):
            stopped = self.stretch.doing == "stop" and rank == self.stretch.culprit
            if stopped or rank in self.ends or self.rng.random() > 0.97:
                continue
            times = 4 if self.job.waits[rank] < max(self.job.waits) else 1  # a stage with a program of its own
            counts = (times * self.done + self._pending(rank, at_ns), times * self.noted[rank])
            both = (*counts, 0, 0) if recorder == "nccl" else (0, 0, *counts)
            look = CounterLook(at_ns * LOOKS_PER_SECOND // SECOND_NS, at_ns, self.step, *both)
            self.looks[rank] = (*self.looks[rank], look)[-LOOK_SLOTS:]

    def _done_at(self, at_ns: int) -> int:
        share = (at_ns - self.since_ns) / (self.stretch.seconds * SECOND_NS)
        return max(0, self.step * self.job.collectives + math.floor(share * self.job.collectives))

    def _draw_arrivals(self, at_ns: int) -> None:
        """Who comes when to the collective that is next: the last of them ends the others' wait."""
        if self.drawn == (self.step, self.done):
            return
        job, rng = self.job, self.rng
        if self.drawn is None or self.drawn[0] != self.step:
            self.batch = [rng.lognormvariate(0, job.batches) for _ in range(job.ranks)]
        self.drawn = self.step, self.done
        arrives = [
            (1 - job.waits[rank]) * job.pace[rank] * self.batch[rank] * rng.lognormvariate(0, job.jitter)
            for rank in range(job.ranks)
        ]
        late = max(1.0, max(arrives) / 0.98)
        self.arrives = [share / late for share in arrives]

    def _stepped(self) -> None:
        # What stood between two steps belongs to the second, as `beat.step()` sees it.
        if self.last_step_ns is not None:
            self.durations = (*self.durations, self.since_ns - self.last_step_ns)[-16:]
        self.step, self.last_step_ns = self.step + 1, self.since_ns
        self.done = max(self.done + 1, self.step * self.job.collectives)

    def _next(self) -> None:
        before, self.stretch = self.stretch, next(self.plan)
        if before.phase != self.stretch.phase:
            self.phase_since_ns = self.since_ns

    def come_out(self, at_ns: int) -> None:
        """Ranks that leave by themselves have come out of the barrier in which they stood."""
        if self.stretch.doing == "alone":
            self.since_ns = at_ns
            self._stepped()

    def tick_seconds(self, at_ns: int) -> int:
        """How long the next tick is, where the middle of what is the same need not be seen each second."""
        lasted = (at_ns - self.since_ns) / SECOND_NS
        in_middle = _MIDDLE_FROM < lasted < self.stretch.seconds - _MIDDLE_UNTIL - _MIDDLE_SECONDS
        same = self.stretch.doing in _SAME or bool(self.stretch.phase)
        return _MIDDLE_SECONDS if in_middle and same else 1

    def strike(self, fault: Fault, at_ns: int) -> None:
        self.stretch, self.since_ns = Stretch(fault.doing, 1e9, self.stretch.phase, fault.rank), at_ns
        if fault.doing == "death":
            self.ends[fault.rank] = ProcessEnd(at_ns, None, 9, "zombie")

    def end(self, rank: int, at_ns: int, code: int | None, killed_by: int | None) -> None:
        self.ends[rank] = ProcessEnd(at_ns, code, killed_by, "hook" if code is not None else "zombie")

    @property
    def deadline_ns(self) -> int | None:
        seconds = self.job.time_out_seconds
        return self.since_ns + int(seconds * SECOND_NS) if seconds and self.stretch.culprit is not None else None

    def samples(self, at_ns: int) -> list[RankSample]:
        return [self._sample(rank, at_ns) for rank in range(self.job.ranks)]

    def _sample(self, rank: int, at_ns: int) -> RankSample:
        stretch, beat = self.stretch, self.beats[rank]
        if rank not in self.ends:
            pulsed = (self.rng.random() < 0.97 or self.tick > 1) and not (
                stretch.doing == "stop" and rank == stretch.culprit
            )
            self.pulses[rank] += pulsed
            groups = beat.groups
            if pulsed and stretch.doing not in STARTS:
                pending, recorder = self._pending(rank, at_ns), self.job.recorder
                groups = (GroupCounter(recorder, 0, self.done + pending, self.noted[rank]),)
                if self.job.waits[rank] < max(self.job.waits):  # a stage with a program of its own
                    groups = (*groups, GroupCounter(recorder, 1, 3 * self.done, 3 * self.noted[rank]))
            beat = self.beats[rank] = msgspec.structs.replace(
                beat,
                step=self.step,
                last_step_ns=self.last_step_ns,
                step_durations_ns=self.durations,
                phase=stretch.phase,
                phase_since_ns=self.phase_since_ns,
                pulse_count=self.pulses[rank],
                pulse_ns=at_ns if pulsed else beat.pulse_ns,
                groups=groups,
                looks=self.looks[rank],
            )
        state = self.processes[rank]
        if stretch.doing == "load":  # weights come from a disk
            state = msgspec.structs.replace(state, read_bytes=at_ns, cpu_ticks=at_ns // 50_000_000)
        if stretch.doing == "stop" and rank == stretch.culprit:
            state = msgspec.structs.replace(state, state="T")
        end = self.ends.get(rank)
        return RankSample(
            job=self.key,
            rank=rank,
            local_rank=rank,
            world_size=self.job.world or self.job.ranks,
            pid=self.pid + rank,
            start_ticks=5,
            heartbeat=Known(beat, at_ns),
            process=Known(state, at_ns) if end is None else Unavailable("gone", at_ns),
            end=end,
        )

    def _pending(self, rank: int, at_ns: int) -> bool:
        stretch = self.stretch
        if stretch.doing in ("idle", "export"):
            return False
        if stretch.culprit is not None:
            return rank != stretch.culprit
        if stretch.doing in STARTS:
            return False
        share = (at_ns - self.since_ns) / (stretch.seconds * SECOND_NS) * self.job.collectives
        return share - math.floor(share) >= self.arrives[rank]


def moments(seed: int, hours: float, *, with_fault: bool = False) -> Iterator[Moment]:
    """Yield one job's node, tick by tick, for so long; with a fault, its last life ends in one."""
    return moments_of(seed, hours, habits, stretches, with_fault=with_fault)


def moments_of(
    seed: int,
    hours: float,
    draw: Callable[[random.Random], Habits],
    plan: Callable[[random.Random, Habits], Iterator[Stretch]],
    *,
    with_fault: bool = False,
    in_short: bool = False,
) -> Iterator[Moment]:
    """Given how a job is drawn and what it does, yield its node, tick by tick. `in_short`: the middle of what takes
    long and is the same all the time is seen every ten seconds, which costs half.

    Lives follow each other: a restart (SIGTERM to all, a new epoch after a while), and at last a planned end with exit
    code 0, in which ranks leave one after the other and the files go.
    """
    rng = random.Random(seed)
    job, at_ns, tick, number = draw(rng), START_NS, 0, 0
    until_ns = START_NS + int(hours * 3600 * SECOND_NS)
    while at_ns < until_ns:
        lasts_ns = min(int(rng.uniform(0.3, 6) * 3600 * SECOND_NS), until_ns - at_ns)
        last = at_ns + lasts_ns >= until_ns
        life = _Life(rng, job, JobKey(f"job-{seed}", f"epoch-{number}"), at_ns, 1000 + 100 * number, plan(rng, job))
        fault = _draw_fault(rng, job, lasts_ns / SECOND_NS) if with_fault and last else None
        number, began_ns, struck = number + 1, at_ns, None
        while at_ns < began_ns + lasts_ns:
            life.tick = life.tick_seconds(at_ns) if in_short else 1
            at_ns += (life.tick - 1) * SECOND_NS
            for part in range(LOOKS_PER_SECOND):
                seen_ns = at_ns + (part + 1) * SECOND_NS // LOOKS_PER_SECOND
                if struck is None:
                    life.advance(seen_ns)
                life.look(seen_ns)
            at_ns, tick = at_ns + SECOND_NS, tick + 1
            # A fault strikes a job that steps: one at its start is another story.
            if fault and struck is None and at_ns >= began_ns + fault.at_seconds * SECOND_NS and life.step > 50:
                struck = Fault(fault.doing, fault.rank, (at_ns - START_NS) / SECOND_NS)
                life.strike(fault, at_ns)
            yield Moment(_snapshot(tick, at_ns, life.samples(at_ns), rng), life.stretch, struck, life.deadline_ns)
        if struck:
            return
        planned = last or (job.exports_seconds > 0 and rng.random() < 0.5)
        for leaving in _leave(rng, life, at_ns, planned=planned):
            at_ns, tick = at_ns + SECOND_NS, tick + 1
            yield Moment(_snapshot(tick, at_ns, leaving, rng), life.stretch, None)


def _leave(rng: random.Random, life: _Life, at_ns: int, *, planned: bool) -> Iterator[list[RankSample]]:
    """The ranks go; their ends stay visible for a while, then the job is forgotten. At a planned end rank 0 may have
    something to do yet, after the others have left."""
    leaves_at = [rng.uniform(0, 20 if planned else 4) for _ in range(life.job.ranks)]
    if planned:
        life.come_out(at_ns)
    if planned and life.job.exports_seconds:
        leaves_at[0] += life.job.exports_seconds
        life.stretch, life.since_ns = Stretch("export", life.job.exports_seconds), at_ns
    for second in range(1, int(max(20, *leaves_at) + EPOCH_GAP_SECONDS)):
        now_ns = at_ns + second * SECOND_NS
        for rank, leaves in enumerate(leaves_at):
            if second >= leaves and rank not in life.ends:
                life.end(rank, now_ns, 0 if planned else None, None if planned else 15)
        yield life.samples(now_ns)
    yield []


def _draw_fault(rng: random.Random, job: Habits, seconds: float) -> Fault:
    return Fault(rng.choice(FAULTS), rng.randrange(job.ranks), rng.uniform(0.3, 0.7) * seconds)


def _snapshot(tick: int, at_ns: int, ranks: list[RankSample], rng: random.Random) -> NodeSnapshot:
    return NodeSnapshot(
        tick=tick,
        at_ns=at_ns,
        wall_ns=at_ns,
        node="node0",
        late_seconds=rng.uniform(0.5, 4) if rng.random() < 0.001 else 0.0,
        ranks=tuple(ranks),
        gpus=Unavailable("no GPU on this node", at_ns),
        sensors=(),
    )
