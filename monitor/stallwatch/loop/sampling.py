"""When jobs that move are sampled: each at the same moments of the wall clock on every node, so that the milliseconds
for which its ranks stand still fall together."""

from collections.abc import Callable, Collection, Sequence

import msgspec

from stallwatch.captures.spec import Compared
from stallwatch.clock import SECOND_NS, Clock
from stallwatch.config_sections import DriftSection
from stallwatch.loop.protocols import Capturing
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobDrift, JobKey, NodeSnapshot, RankSample
from stallwatch.model.summary import SampleMemory

# The child must be up, and hooks must have seen the request, before the moment at which all dump: a tick, a start, and
# a pulse of ranks that step. A hook puts its answer off by four seconds at most.
_LEAD_NS = 3_500_000_000
_LEAST_RANKS = 2
MOVES_ALL_THE_SAME = ("slow", "health")  # findings of these families do not keep a job from being sampled

# Given targets, the moment, and what the sample before left, start one: ChildStarter.sample.
Start = Callable[[Sequence[RankSample], int, SampleMemory], Capturing]


class _Job(msgspec.Struct):
    memory: SampleMemory = SampleMemory()
    run: Capturing | None = None
    moment: int = -1  # number of the last moment at which it was sampled
    last: JobDrift | None = None
    at_ns: int = 0


class Sampler:
    """Called once a tick. Never blocks."""

    def __init__(self, section: DriftSection, clock: Clock, start: Start) -> None:
        self._section = section
        self._clock = clock
        self._start = start
        self._jobs: dict[JobKey, _Job] = {}

    def configure(self, section: DriftSection) -> None:
        """Take a new interval from the next sample on."""
        self._section = section

    def step(self, snapshot: NodeSnapshot, quiet: Collection[JobKey]) -> tuple[JobDrift, ...]:
        """Begin the samples that are due and return the last of each job. Jobs in `quiet` are being looked at: no
        second request may take the place of the first, and what stands is no moving job."""
        ranks: dict[JobKey, list[RankSample]] = {}
        for rank in snapshot.ranks:
            ranks.setdefault(rank.job, []).append(rank)
        for job in [job for job in self._jobs if job not in ranks]:
            self._forget(job)
        for job, members in ranks.items():
            state = self._jobs.setdefault(job, _Job())
            self._poll(job, state)
            if state.run is None and job not in quiet and self._is_due(state) and _may_be_sampled(members):
                self._begin(state, members)
        return tuple(state.last for state in self._jobs.values() if state.last is not None)

    def close(self) -> None:
        """End the samples under way, and forget what the last ones said."""
        for job in list(self._jobs):
            self._forget(job)

    def _is_due(self, state: _Job) -> bool:
        every_ns = int(self._section.every_seconds * SECOND_NS)
        if not every_ns:
            return False
        moment = (self._clock.wall_ns() + _LEAD_NS) // every_ns
        if state.moment < 0:
            state.moment = moment  # a job, or a daemon, that has just begun waits for the next moment
            return False
        if moment == state.moment:
            return False
        state.moment = moment
        state.at_ns = self._clock.monotonic_ns() + max(moment * every_ns - self._clock.wall_ns(), 0)
        return True

    def _begin(self, state: _Job, members: list[RankSample]) -> None:
        state.run = self._start(members, state.at_ns, state.memory)

    def _poll(self, job: JobKey, state: _Job) -> None:
        look = state.run.poll() if state.run is not None else None
        if look is None or not look.done:
            return
        state.run = None
        result = look.compared or Compared(0, (), state.memory, look.problem)
        state.memory = result.memory
        state.last = JobDrift(job, state.at_ns, result.ranks, result.verdicts, result.problem)

    def _forget(self, job: JobKey) -> None:
        state = self._jobs.pop(job)
        if state.run is not None:
            state.run.cancel()


def _may_be_sampled(members: list[RankSample]) -> bool:
    """All of the job's ranks here live, have a hook that publishes, and are not in a phase of their own."""
    beats = [rank.heartbeat.value for rank in members if isinstance(rank.heartbeat, Known) and rank.end is None]
    if len(beats) < max(_LEAST_RANKS, len(members)):
        return False
    return all(not beat.ended and not beat.phase and beat.dump_started_ns is None for beat in beats)
