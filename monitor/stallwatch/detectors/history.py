"""What the daemon has seen of each rank, and since when: the only place that counts ages.

A word's age begins when we saw it change in our own snapshots; the record's own time of a step is believed only between
the two readings that saw it. Time in which our own tick was late is not counted: what stopped us may have stopped the
job as well (a suspended machine, a frozen container).
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.limits import Times, learn
from stallwatch.model.gpu import Gpu
from stallwatch.model.kernel import KernelEvent
from stallwatch.model.reading import Known, known
from stallwatch.model.snapshot import (
    GroupCounter,
    Heartbeat,
    HostSample,
    JobKey,
    NodeSnapshot,
    ProcessSample,
    RankSample,
)
from stallwatch.progress.cpu_time import CLOCK_TICKS_PER_SECOND
from stallwatch.progress.outside import Outside, seen_from_outside
from stallwatch.progress.ticks import (
    Ticks,
    TickTimes,
    advanced,
    counts_steps,
    first_seen,
    has_changed_phase,
    unread,
    without_late_time,
)

_CONTENTION_TICKS = 30
LATE_SECONDS = 1.0  # lateness below this is jitter of a busy node
_LATER_PHASES = 8  # phases whose times are kept, per rank


class RankHistory(msgspec.Struct, frozen=True):
    """One process of one rank. Times are CLOCK_MONOTONIC nanoseconds of our snapshots."""

    sample: RankSample
    first_seen_ns: int
    heartbeat: Heartbeat | None = None  # the last that could be read
    readable: bool = False  # at this tick
    ticks: Ticks = Ticks()
    step_times: Times = Times()
    gap_times: Times = Times()  # between changes of the recorder's counters
    phase_times: tuple[tuple[str, Times], ...] = ()
    # Of the last half minute or so: share of ticks at which its main thread was ready to run and got hardly any CPU.
    contended_share: float = 0.0
    traced_ns: int | None = None  # when it was last seen under a tracer
    outside: Outside | None = None  # where it has no hook, and its process can be read

    @property
    def alive(self) -> bool:
        """Whether its process has not ended."""
        return self.sample.end is None

    @property
    def counts_steps(self) -> bool:
        """Whether its hook has counted any step."""
        return counts_steps(self.heartbeat)

    @property
    def groups(self) -> tuple[GroupCounter, ...]:
        """Its process groups' counters, by its hook; none without one."""
        return self.heartbeat.groups if self.heartbeat else ()

    @property
    def pending(self) -> bool:
        """Its recorder holds an operation that is enqueued and not completed."""
        return any(group.pending for group in self.groups)

    @property
    def begun(self) -> bool:
        """It is past its start: it has stepped or, where nobody counts steps, its collectives have a rhythm."""
        if self.outside is not None:
            return self.outside.has_worked
        return self.counts_steps or self.gap_times.learned

    @property
    def has_words(self) -> bool:
        """There is something whose standing still would mean anything."""
        return self.counts_steps or bool(self.groups)

    @property
    def moved(self) -> bool:
        """Whether it stepped, changed its phase or made calls of its own since the last tick."""
        return self.ticks.moved

    def works(self, at_ns: int) -> bool:
        """Its main thread, or a process that it started, computes while it stands still."""
        return self.ticks.works(_process(self.sample), at_ns)

    @property
    def phase(self) -> str:
        """The phase that its job told; "" outside of any."""
        return self.heartbeat.phase if self.heartbeat else ""

    @property
    def progress_since_ns(self) -> int:
        """When we last saw it move."""
        return self.ticks.progress_since_ns(self.heartbeat)

    def times_of_phase(self, phase: str) -> Times:
        """How long that phase has taken before."""
        return next((times for name, times in self.phase_times if name == phase), Times())


class NodeHistory(msgspec.Struct, frozen=True, dict=True):
    """All ranks at one tick, sorted by job and rank: what detectors look at."""

    snapshot: NodeSnapshot
    ranks: tuple[RankHistory, ...] = ()

    @property
    def at_ns(self) -> int:
        """When the last snapshot was taken (CLOCK_MONOTONIC)."""
        return self.snapshot.at_ns

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """None when the driver does not answer."""
        return known(self.snapshot.gpus) or ()

    @property
    def host(self) -> HostSample | None:
        """The host at that moment; None where it is not known."""
        return known(self.snapshot.host)

    @property
    def notices(self) -> tuple[KernelEvent, ...]:
        """Of the kernel, of the last minutes."""
        return self.host.notices if self.host is not None else ()

    def jobs(self) -> Sequence[tuple[JobKey, tuple[RankHistory, ...]]]:
        """Each job with its ranks on this node."""
        return self._jobs

    @cached_property  # some thirty ask at each tick
    def _jobs(self) -> tuple[tuple[JobKey, tuple[RankHistory, ...]], ...]:
        of_job = groupby(self.ranks, key=lambda rank: rank.sample.job)
        return tuple((job, tuple(ranks)) for job, ranks in of_job)


def advance(before: NodeHistory | None, snapshot: NodeSnapshot) -> NodeHistory:
    """Given what was known and a new snapshot, return what is known now; processes that left it are forgotten."""
    followed = {_identity(rank.sample): rank for rank in before.ranks} if before else {}
    late_ns = int(snapshot.late_seconds * SECOND_NS) if snapshot.late_seconds >= LATE_SECONDS else 0
    moment = TickTimes(snapshot.at_ns, before.at_ns if before else snapshot.at_ns, late_ns)
    gpu_of = {pid: gpu for gpu in known(snapshot.gpus) or () for pid in gpu.compute_pids or ()}
    ranks = [
        _with_tracer(followed.get(_identity(sample)), sample, moment, gpu_of.get(sample.pid))
        for sample in snapshot.ranks
    ]
    ranks.sort(key=lambda rank: (rank.sample.job, rank.sample.rank, rank.sample.pid))
    return NodeHistory(snapshot, tuple(ranks))


def _identity(sample: RankSample) -> tuple[JobKey, int, int, int]:
    return sample.job, sample.rank, sample.pid, sample.start_ticks


def _with_tracer(before: RankHistory | None, sample: RankSample, moment: TickTimes, gpu: Gpu | None) -> RankHistory:
    after = _advance_rank(before, sample, moment)
    if after.heartbeat is None:
        was = before.outside if before else None
        now = seen_from_outside(was, _process(sample), gpu, moment.at_ns, moment.late_ns)
        after = msgspec.structs.replace(after, outside=now)
    traced = isinstance(sample.process, Known) and sample.process.value.tracer_pid != 0
    traced_ns = moment.at_ns if traced else before.traced_ns if before else None
    return after if after.traced_ns == traced_ns else msgspec.structs.replace(after, traced_ns=traced_ns)


def _advance_rank(before: RankHistory | None, sample: RankSample, moment: TickTimes) -> RankHistory:
    at_ns = moment.at_ns
    heartbeat = sample.heartbeat.value if isinstance(sample.heartbeat, Known) else None
    if before is not None and (old := before.heartbeat) is not None:
        before = msgspec.structs.replace(before, ticks=without_late_time(before.ticks, at_ns, moment.late_ns))
        if heartbeat is None:
            return msgspec.structs.replace(
                before, sample=sample, readable=False, ticks=unread(before.ticks, _process(sample), at_ns)
            )
        return _compared(before, old, sample, heartbeat, moment)
    first_seen_ns = before.first_seen_ns if before else at_ns
    if heartbeat is None:
        ticks = before.ticks if before else Ticks(worked_ns=at_ns, worked_beside_ns=at_ns)
        return RankHistory(sample, first_seen_ns, ticks=unread(ticks, _process(sample), at_ns))
    return _first(sample, heartbeat, first_seen_ns, at_ns)


def _first(sample: RankSample, heartbeat: Heartbeat, first_seen_ns: int, at_ns: int) -> RankHistory:
    return RankHistory(
        sample,
        first_seen_ns,
        heartbeat,
        readable=True,
        ticks=first_seen(heartbeat, at_ns),
        step_times=learn(Times(), heartbeat.step_durations_ns),
    )


def _compared(
    before: RankHistory, old: Heartbeat, sample: RankSample, heartbeat: Heartbeat, moment: TickTimes
) -> RankHistory:
    at_ns = moment.at_ns
    ticks = advanced(before.ticks, old, heartbeat, _process(sample), moment)
    counted = ticks.counters_since_ns == at_ns != before.ticks.counters_since_ns
    phase_changed = has_changed_phase(old, heartbeat)
    in_phase = phase_changed or bool(heartbeat.phase)
    return RankHistory(
        sample,
        before.first_seen_ns,
        heartbeat,
        readable=True,
        ticks=ticks,
        step_times=learn(before.step_times, _new_steps(old, heartbeat, before.step_times, in_phase)),
        gap_times=learn(before.gap_times, _new_gap(before, old, counted, in_phase, at_ns)),
        phase_times=_phase_times(before, old, phase_changed, at_ns),
        contended_share=_contended_share(before, sample, moment),
    )


def _process(sample: RankSample) -> ProcessSample | None:
    return sample.process.value if isinstance(sample.process, Known) else None


def _contended_share(before: RankHistory, sample: RankSample, moment: TickTimes) -> float:
    if not (isinstance(before.sample.process, Known) and isinstance(sample.process, Known)):
        return before.contended_share
    old, new = before.sample.process.value, sample.process.value
    seconds = (moment.at_ns - moment.last_ns) / SECOND_NS
    ran = (new.main_thread_cpu_ticks - old.main_thread_cpu_ticks) / CLOCK_TICKS_PER_SECOND
    contended = new.main_thread_state == "R" and seconds > 0 and ran < 0.8 * seconds
    return before.contended_share + (contended - before.contended_share) / _CONTENTION_TICKS


def _new_steps(old: Heartbeat, new: Heartbeat, times: Times, in_phase: bool) -> tuple[int, ...]:
    if old.step is None or new.step is None or new.step <= old.step:
        return ()
    durations = new.step_durations_ns[-(new.step - old.step) :]
    if in_phase and times.learned:
        # A step that held a checkpoint or an evaluation is that phase's time, not a step's.
        bar = 3 * times.quantile(0.5)
        durations = tuple(d for d in durations if d <= bar)
    return durations


def _new_gap(before: RankHistory, old: Heartbeat, counted: bool, in_phase: bool, at_ns: int) -> tuple[int, ...]:
    if not counted or in_phase or not old.groups:
        return ()
    return (at_ns - before.ticks.counters_since_ns,)


def _phase_times(before: RankHistory, old: Heartbeat, phase_changed: bool, at_ns: int) -> tuple[tuple[str, Times], ...]:
    if not (phase_changed and old.phase):
        return before.phase_times
    times = learn(before.times_of_phase(old.phase), (at_ns - before.ticks.phase_since_ns,))
    others = [(name, kept) for name, kept in before.phase_times if name != old.phase]
    return (*others[-(_LATER_PHASES - 1) :], (old.phase, times))
