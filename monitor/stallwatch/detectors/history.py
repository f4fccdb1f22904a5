"""What the daemon has seen of each rank, and since when: the only place that counts ages.

A word's age begins when we saw it change in our own snapshots; the record's own time of a step is believed only between
the two snapshots that saw it. Time in which our own tick was late is not counted: what stopped us may have stopped the
job as well (a suspended machine, a frozen container).
"""

from collections.abc import Iterator
from itertools import groupby

import msgspec

from stallwatch.detectors.limits import SECOND_NS, Times, learn, quantile
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import (
    GpuSample,
    GroupCounter,
    Heartbeat,
    HostSample,
    JobDrift,
    JobKey,
    KernelNotice,
    NodeSnapshot,
    ProcessSample,
    RankSample,
)

# A pulse tells of the past second: the first change after a step is of that step, the next of the operation that hangs.
_OWN_CHANGES = 2
_CLOCK_TICKS_PER_SECOND = 100  # sysconf(_SC_CLK_TCK) of every Linux that runs torch
_CONTENTION_TICKS = 30
_STILL_SECONDS = 2.0  # what it did before it stood still is in the first ticks after
_WORK_SECONDS = 3.0
_WORKING_SHARE = 0.005  # of a core: a poll ten times a second takes up to 0.003, small works with pauses 0.006
LATE_SECONDS = 1.0  # lateness below this is jitter of a busy node
_LATER_PHASES = 8  # phases whose times are kept, per rank


class RankHistory(msgspec.Struct, frozen=True):
    """One process of one rank. Times are CLOCK_MONOTONIC nanoseconds of our snapshots."""

    sample: RankSample
    first_seen_ns: int
    heartbeat: Heartbeat | None = None  # the last that could be read
    readable: bool = False  # at this tick
    step_since_ns: int = 0
    counters_since_ns: int = 0
    counter_changes: int = 0  # since the step changed
    phase_since_ns: int = 0
    pulse_since_ns: int = 0
    moved: bool = False  # at this tick
    stepped: bool = False  # at this tick
    pulsed: bool = False  # at this tick
    step_times: Times = Times()
    gap_times: Times = Times()  # between changes of the recorder's counters
    phase_times: tuple[tuple[str, Times], ...] = ()
    # Of the last half minute or so: share of ticks at which its main thread was ready to run and got hardly any CPU.
    contended_share: float = 0.0
    # Since it has stood still for some seconds: CLOCK_MONOTONIC and the CPU time of its main thread and its children.
    still: tuple[int, int] | None = None
    traced_ns: int | None = None  # when it was last seen under a tracer

    @property
    def alive(self) -> bool:
        return self.sample.end is None

    @property
    def counts_steps(self) -> bool:
        return self.heartbeat is not None and self.heartbeat.step is not None and self.heartbeat.step > 0

    @property
    def groups(self) -> tuple[GroupCounter, ...]:
        return self.heartbeat.groups if self.heartbeat else ()

    @property
    def pending(self) -> bool:
        """Its recorder holds an operation that is enqueued and not completed."""
        return any(group.enqueued > group.completed for group in self.groups)

    @property
    def begun(self) -> bool:
        """It is past its start: it has stepped or, where nobody counts steps, its collectives have a rhythm."""
        return self.counts_steps or self.gap_times.learned

    @property
    def has_words(self) -> bool:
        """There is something whose standing still would mean anything."""
        return self.counts_steps or bool(self.groups)

    def works(self, at_ns: int) -> bool:
        """Its main thread, or a process that it started, computes while it stands still: what polls, or sleeps until
        somebody wakes it, takes next to nothing."""
        if self.still is None or not isinstance(self.sample.process, Known):
            return False
        since_ns, ticks = self.still
        seconds = (at_ns - since_ns) / SECOND_NS
        used = (_cpu_ticks(self.sample.process.value) - ticks) / _CLOCK_TICKS_PER_SECOND
        return seconds >= _WORK_SECONDS and used >= _WORKING_SHARE * seconds

    @property
    def phase(self) -> str:
        return self.heartbeat.phase if self.heartbeat else ""

    @property
    def progress_since_ns(self) -> int:
        """When we last saw it move: its step, its phase, or counters that go on within a long step."""
        since = max(self.step_since_ns, self.phase_since_ns)
        if not self.counts_steps or self.counter_changes > _OWN_CHANGES:
            since = max(since, self.counters_since_ns)
        return since

    def times_of_phase(self, phase: str) -> Times:
        return next((times for name, times in self.phase_times if name == phase), Times())


class NodeHistory(msgspec.Struct, frozen=True):
    """All ranks at one tick, sorted by job and rank: what detectors look at."""

    at_ns: int
    late_seconds: float
    node: str
    ranks: tuple[RankHistory, ...] = ()
    gpus: tuple[GpuSample, ...] = ()  # at this tick; none when the driver does not answer
    notices: tuple[KernelNotice, ...] = ()  # of the kernel, of the last minutes
    host: HostSample | None = None
    drifts: tuple[JobDrift, ...] = ()

    def jobs(self) -> Iterator[tuple[JobKey, tuple[RankHistory, ...]]]:
        for job, ranks in groupby(self.ranks, key=lambda rank: rank.sample.job):
            yield job, tuple(ranks)


def advance(before: NodeHistory | None, snapshot: NodeSnapshot) -> NodeHistory:
    """Given what was known and a new snapshot, return what is known now; processes that left it are forgotten."""
    known = {_identity(rank.sample): rank for rank in before.ranks} if before else {}
    late_ns = int(snapshot.late_seconds * SECOND_NS) if snapshot.late_seconds >= LATE_SECONDS else 0
    moment = _Moment(snapshot.at_ns, before.at_ns if before else snapshot.at_ns, late_ns)
    ranks = [_with_tracer(known.get(_identity(sample)), sample, moment) for sample in snapshot.ranks]
    ranks.sort(key=lambda rank: (rank.sample.job, rank.sample.rank, rank.sample.pid))
    return NodeHistory(
        snapshot.at_ns,
        snapshot.late_seconds,
        snapshot.node,
        tuple(ranks),
        snapshot.gpus.value if isinstance(snapshot.gpus, Known) else (),
        snapshot.host.value.notices if isinstance(snapshot.host, Known) else (),
        snapshot.host.value if isinstance(snapshot.host, Known) else None,
        snapshot.drifts,
    )


def _identity(sample: RankSample) -> tuple[JobKey, int, int, int]:
    return sample.job, sample.rank, sample.pid, sample.start_ticks


class _Moment(msgspec.Struct, frozen=True):
    at_ns: int
    last_ns: int  # of the snapshot before
    late_ns: int


def _with_tracer(before: RankHistory | None, sample: RankSample, moment: _Moment) -> RankHistory:
    after = _advance_rank(before, sample, moment)
    traced = isinstance(sample.process, Known) and sample.process.value.tracer_pid != 0
    traced_ns = moment.at_ns if traced else before.traced_ns if before else None
    return after if after.traced_ns == traced_ns else msgspec.structs.replace(after, traced_ns=traced_ns)


def _advance_rank(before: RankHistory | None, sample: RankSample, moment: _Moment) -> RankHistory:
    at_ns = moment.at_ns
    heartbeat = sample.heartbeat.value if isinstance(sample.heartbeat, Known) else None
    if before is not None and before.heartbeat is not None:
        old, before = before.heartbeat, _without_late_time(before, at_ns, moment.late_ns)
        if heartbeat is None:
            return msgspec.structs.replace(
                before, sample=sample, readable=False, moved=False, stepped=False, pulsed=False
            )
        return _compared(before, old, sample, heartbeat, moment)
    first_seen_ns = before.first_seen_ns if before else at_ns
    if heartbeat is None:
        return RankHistory(sample, first_seen_ns)
    return _first(sample, heartbeat, first_seen_ns, at_ns)


def _first(sample: RankSample, heartbeat: Heartbeat, first_seen_ns: int, at_ns: int) -> RankHistory:
    # A daemon that starts in the middle of a hang believes the record: the same clock of the same boot.
    step_since_ns = at_ns
    if heartbeat.step and heartbeat.last_step_ns is not None and 0 < heartbeat.last_step_ns <= at_ns:
        step_since_ns = heartbeat.last_step_ns
    in_phase = bool(heartbeat.phase) and 0 < heartbeat.phase_since_ns <= at_ns
    return RankHistory(
        sample,
        first_seen_ns,
        heartbeat,
        readable=True,
        step_since_ns=step_since_ns,
        counters_since_ns=step_since_ns if heartbeat.step else at_ns,
        phase_since_ns=heartbeat.phase_since_ns if in_phase else step_since_ns,
        pulse_since_ns=at_ns,
        step_times=learn(Times(), heartbeat.step_durations_ns),
    )


def _compared(
    before: RankHistory, old: Heartbeat, sample: RankSample, heartbeat: Heartbeat, moment: _Moment
) -> RankHistory:
    at_ns = moment.at_ns
    stepped = heartbeat.step != old.step
    counted = heartbeat.groups != old.groups
    phase_changed = (heartbeat.phase, heartbeat.phase_since_ns) != (old.phase, old.phase_since_ns)
    pulsed = heartbeat.pulse_count != old.pulse_count
    in_phase = phase_changed or bool(heartbeat.phase)
    changes = before.counter_changes
    return RankHistory(
        sample,
        before.first_seen_ns,
        heartbeat,
        readable=True,
        step_since_ns=_stepped_at(heartbeat, moment) if stepped else before.step_since_ns,
        counters_since_ns=at_ns if counted else before.counters_since_ns,
        counter_changes=0 if stepped else changes + counted,
        phase_since_ns=at_ns if phase_changed else before.phase_since_ns,
        pulse_since_ns=at_ns if pulsed else before.pulse_since_ns,
        moved=stepped or phase_changed or (counted and (not before.counts_steps or changes >= _OWN_CHANGES)),
        stepped=stepped,
        pulsed=pulsed,
        step_times=learn(before.step_times, _new_steps(old, heartbeat, before.step_times, in_phase)),
        gap_times=learn(before.gap_times, _new_gap(before, old, counted, in_phase, at_ns)),
        phase_times=_phase_times(before, old, phase_changed, at_ns),
        contended_share=_contended_share(before, sample, moment),
        still=_still(before, sample, stepped or phase_changed, at_ns),
    )


def _still(before: RankHistory, sample: RankSample, moved: bool, at_ns: int) -> tuple[int, int] | None:
    if moved or not isinstance(sample.process, Known):
        return None
    if before.still is not None:
        return before.still
    long_enough = at_ns - max(before.step_since_ns, before.phase_since_ns) >= _STILL_SECONDS * SECOND_NS
    return (at_ns, _cpu_ticks(sample.process.value)) if long_enough else None


def _cpu_ticks(process: ProcessSample) -> int:
    return process.main_thread_cpu_ticks + sum(child.cpu_ticks for child in process.children)


def _contended_share(before: RankHistory, sample: RankSample, moment: _Moment) -> float:
    if not (isinstance(before.sample.process, Known) and isinstance(sample.process, Known)):
        return before.contended_share
    old, new = before.sample.process.value, sample.process.value
    seconds = (moment.at_ns - moment.last_ns) / SECOND_NS
    ran = (new.main_thread_cpu_ticks - old.main_thread_cpu_ticks) / _CLOCK_TICKS_PER_SECOND
    contended = new.main_thread_state == "R" and seconds > 0 and ran < 0.8 * seconds
    return before.contended_share + (contended - before.contended_share) / _CONTENTION_TICKS


def _stepped_at(heartbeat: Heartbeat, moment: _Moment) -> int:
    last = heartbeat.last_step_ns
    return last if last is not None and moment.last_ns <= last <= moment.at_ns else moment.at_ns


def _new_steps(old: Heartbeat, new: Heartbeat, times: Times, in_phase: bool) -> tuple[int, ...]:
    if old.step is None or new.step is None or new.step <= old.step:
        return ()
    durations = new.step_durations_ns[-(new.step - old.step) :]
    if in_phase and times.learned:
        # A step that held a checkpoint or an evaluation is that phase's time, not a step's.
        bar = 3 * quantile(times.recent, 0.5)
        durations = tuple(d for d in durations if d <= bar)
    return durations


def _new_gap(before: RankHistory, old: Heartbeat, counted: bool, in_phase: bool, at_ns: int) -> tuple[int, ...]:
    if not counted or in_phase or not old.groups:
        return ()
    return (at_ns - before.counters_since_ns,)


def _phase_times(before: RankHistory, old: Heartbeat, phase_changed: bool, at_ns: int) -> tuple[tuple[str, Times], ...]:
    if not (phase_changed and old.phase):
        return before.phase_times
    times = learn(before.times_of_phase(old.phase), (at_ns - before.phase_since_ns,))
    others = [(name, kept) for name, kept in before.phase_times if name != old.phase]
    return (*others[-(_LATER_PHASES - 1) :], (old.phase, times))


def _without_late_time(rank: RankHistory, at_ns: int, late_ns: int) -> RankHistory:
    if not late_ns:
        return rank
    return msgspec.structs.replace(
        rank,
        step_since_ns=min(rank.step_since_ns + late_ns, at_ns),
        counters_since_ns=min(rank.counters_since_ns + late_ns, at_ns),
        phase_since_ns=min(rank.phase_since_ns + late_ns, at_ns),
        pulse_since_ns=min(rank.pulse_since_ns + late_ns, at_ns),
    )
