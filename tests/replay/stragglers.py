"""A synchronous job, step by step: ranks compute, meet in a collective, go on together. One of them may be slower."""

import random
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from stallwatch.model.snapshot import ChildSample, GroupCounter, NodeSnapshot
from tests.unit.detectors.nodes import SECOND, START, heartbeat, sample, snapshot

By = Literal["sleep", "cpu contention", "data loader", "nothing", "pipeline", "experts"]
COMPUTE_SECONDS = 0.17
COLLECTIVE_SECONDS = 0.03
JITTER = 0.04
PULSE_SECONDS = (0.75, 1.0, 1.25)  # hook/pulse.py dithers by its publishing interval, and each of those by 50 ms


class Job(NamedTuple):
    by: By
    ranks: int
    slowdown: float  # of one rank: 0.3 is 30 % more
    slow_rank: int
    onset_seconds: float


class _Rank:
    """Where one rank stands: it computes until `arrives`, then waits for the others and the collective."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.arrives = self.pulse_at = 0.0
        self.pulses = self.ran_ticks = 0
        self.groups: tuple[GroupCounter, ...] = ()


def play(job: Job, seconds: float, seed: int) -> Iterator[NodeSnapshot]:
    """Yield a snapshot a second."""
    rng = random.Random(seed)
    ranks = [_Rank(rank) for rank in range(job.ranks)]
    step, began, ends = 0, 0.0, 0.0
    durations: tuple[int, ...] = ()
    for second in range(1, int(seconds) + 1):
        # Steps and pulses in the order of time: a pulse sees the step that it falls into.
        while True:
            if ends <= began:
                for rank in ranks:
                    rank.arrives = began + _compute(job, rank.rank, began, rng)
                ends = max(rank.arrives for rank in ranks) + COLLECTIVE_SECONDS
            next_pulse = min(ranks, key=lambda rank: rank.pulse_at)
            if min(next_pulse.pulse_at, ends) > second:
                break
            if next_pulse.pulse_at <= ends:
                _pulse(job, next_pulse, step, rng)
                continue
            durations = (*durations, int((ends - began) * SECOND))[-16:]
            step, began = step + 1, ends
        yield _look(job, ranks, second, step, began, durations, rng)


def _compute(job: Job, rank: int, now: float, rng: random.Random) -> float:
    seconds = COMPUTE_SECONDS * rng.lognormvariate(0, JITTER)
    if job.by == "experts":
        return seconds * rng.lognormvariate(0, 0.25)  # whose tokens are many changes from step to step
    if job.by == "pipeline":
        return seconds * (0.5 if rank in (0, job.ranks - 1) else 1.0)
    if job.by != "nothing" and rank == job.slow_rank and now >= job.onset_seconds:
        slower = job.slowdown
        if job.by == "data loader":
            slower = 10 * job.slowdown if rng.random() < 0.1 else 0.0  # every tenth batch is not there in time
        elif job.by == "cpu contention":
            slower *= rng.uniform(0, 2)
        return seconds * (1 + slower)
    return seconds


def _pulse(job: Job, rank: _Rank, step: int, rng: random.Random) -> None:
    waits = rank.pulse_at >= rank.arrives
    rank.groups = (GroupCounter("gloo", 0, step + waits, step),)
    if job.by == "pipeline":  # the first and the last stage have one neighbour, the others two
        sends = step * (2 if rank.rank in (0, job.ranks - 1) else 4) * 4
        rank.groups = (*rank.groups, GroupCounter("gloo", 1, sends, sends))
    rank.pulses += 1
    rank.pulse_at += rng.choice(PULSE_SECONDS) + sum(rng.uniform(-0.05, 0.05) for _ in range(4))


def _look(
    job: Job,
    ranks: list[_Rank],
    second: int,
    step: int,
    began: float,
    durations: tuple[int, ...],
    rng: random.Random,
) -> NodeSnapshot:
    samples = []
    for rank in ranks:
        slow = rank.rank == job.slow_rank and second >= job.onset_seconds
        beat = heartbeat(
            rank.rank,
            step=step,
            last_step_ns=START + int(began * SECOND) if step else None,
            step_durations_ns=durations,
            pulse_count=rank.pulses,
            groups=rank.groups,
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
        "children": tuple(ChildSample(9000 + n, "D" if rng.random() < loads else "S", 0, "python") for n in range(4)),
    }
