"""How a rank moves from tick to tick, by the words of its hook's record and the CPU of its training thread.

Counters of the recorder are of the whole process: a saver's or a metrics thread's collectives are among them. They are
the training thread's where its Python frames change as well; while those stand, whoever counts is another thread.

A word's age begins when we saw it change in our own snapshots; the record's own time of a step or phase is believed
only between the two readings that saw it. Time in which our own tick was late is not counted: what stopped us may have
stopped the job as well (a suspended machine, a frozen container).
"""

from typing import NamedTuple, Protocol

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.model.snapshot import Heartbeat, ProcessSample
from stallwatch.progress.cpu_time import CLOCK_TICKS_PER_SECOND, programs_work

# A pulse tells of the past second: the first change after a step is of that step, the next of the operation that hangs.
_OWN_CHANGES = 2
# After others have left: steps that a host launched before it waited for one of them do not show that it went on.
RAN_AHEAD_NS = 2 * SECOND_NS
_STILL_SECONDS = 2.0  # what it did before it stood still is in the first ticks after
_WORK_SECONDS = 3.0
# Frames are looked at four times a second, counters once: a change of the one is seen a moment before the other's.
_FRAMES_NS = 1_500_000_000
# A snapshot is whole when its slowest sensor has answered (NVML, of one GPU with four ranks, took so long that of nine
# hangs three were suspected a second late): a record is read up to sensors.deadline_seconds before.
_READ_BEFORE_NS = 500_000_000
_PULSE_STILL_SECONDS = 3.0  # the hook's pulse beats once a second, and a busy node lets it wait
_WORKING_SHARE = 0.005  # of a core: a poll ten times a second takes up to 0.003, small works with pauses 0.006
# Of a start, by all threads of the process and what it started: in an RPC the work is another thread's. Our pulse,
# trackers and waits that poll take less than one per cent; who loads, compiles or prepares takes much more.
_START_SHARE = 0.05
_START_BYTES = 128 << 10  # a second; the hook itself writes 32 KiB
_START_SECONDS = 30.0  # over which both are taken


class TickTimes(msgspec.Struct, frozen=True):
    """The times of a tick (CLOCK_MONOTONIC, ns)."""

    at_ns: int
    last_ns: int  # of the snapshot before
    late_ns: int


class Work(NamedTuple):
    """What a process had done by a moment (CLOCK_MONOTONIC, ns). CPU in clock ticks."""

    at_ns: int
    training: int  # of the thread that trains
    own: int  # of all its threads, and of its children
    whole: int  # and of the programs that these have run to their end
    moved_bytes: int  # what cannot be read counts as none: patience asks for that (detectors.job_facts)


class Ticks(msgspec.Struct, frozen=True):
    """What a rank's words have done so far. Times are CLOCK_MONOTONIC nanoseconds of our snapshots."""

    step_since_ns: int = 0
    counters_since_ns: int = 0
    counter_changes: int = 0  # since the step changed
    phase_since_ns: int = 0
    frames_since_ns: int = 0  # its training thread's; at each tick where its hook does not count them
    pulse_since_ns: int = 0
    moved: bool = False  # at this tick
    stepped: bool = False  # at this tick
    pulsed: bool = False  # at this tick
    # Since it has stood still for some seconds: CLOCK_MONOTONIC, the CPU time of its main thread and its children, and
    # that with the programs which these have run to their end.
    still: tuple[int, int, int] | None = None
    # Of one that counts no steps: when it was last seen at work, or could not be seen; when any but its training thread
    # was (a wait for other ranks may spin); and what that is counted from.
    worked_ns: int = 0
    worked_beside_ns: int = 0
    work: Work | None = None

    @property
    def steps_since_ns(self) -> int:
        """When its step or its phase last changed: what no other thread does."""
        return max(self.step_since_ns, self.phase_since_ns)

    def progress_since_ns(self, heartbeat: Heartbeat | None) -> int:
        """When we last saw it move: its step, its phase, or counters that go on within a long step."""
        since = self.steps_since_ns
        if not counts_steps(heartbeat) or self.counter_changes > _OWN_CHANGES:
            since = max(since, self.counters_since_ns)
        return since

    def works(self, process: ProcessSample | None, at_ns: int) -> bool:
        """Whether its main thread, or a process that it started, computes while it stands still: what polls, or sleeps
        until somebody wakes it, takes next to nothing."""
        if self.still is None or process is None:
            return False
        since_ns, own, whole = self.still
        ticks = (at_ns - since_ns) / SECOND_NS * CLOCK_TICKS_PER_SECOND
        if ticks < _WORK_SECONDS * CLOCK_TICKS_PER_SECOND:
            return False
        now = _cpu_ticks(process)
        by_programs = (now + _reaped_ticks(process) - whole) / ticks
        return now - own >= _WORKING_SHARE * ticks or programs_work(by_programs)


class CountedSteps(Protocol):
    """What a record says of steps, as in model.snapshot.Heartbeat."""

    @property
    def step(self) -> int | None:
        """Its step; None: nobody counts steps."""


def counts_steps(heartbeat: CountedSteps | None) -> bool:
    """Whether the hook of a rank has counted any step."""
    return heartbeat is not None and heartbeat.step is not None and heartbeat.step > 0


def pulse_stands(beaten_ns: int, at_ns: int, dump_started_ns: int | None) -> bool:
    """Given when a hook's pulse last beat, by its record or as it was seen, return whether it stands still: the process
    is stopped, or something keeps the GIL. A dump that is under way (`dump_started_ns`) keeps it for up to seconds."""
    return dump_started_ns is None and at_ns - beaten_ns > _PULSE_STILL_SECONDS * SECOND_NS


def first_seen(heartbeat: Heartbeat, at_ns: int) -> Ticks:
    """Given a rank's first record, return since when it stands."""
    # A daemon that starts in the middle of a hang believes the record: the same clock of the same boot.
    step_since_ns = at_ns
    if heartbeat.step and heartbeat.last_step_ns is not None and 0 < heartbeat.last_step_ns <= at_ns:
        step_since_ns = heartbeat.last_step_ns
    in_phase = bool(heartbeat.phase) and 0 < heartbeat.phase_since_ns <= at_ns
    return Ticks(
        step_since_ns=step_since_ns,
        counters_since_ns=step_since_ns if heartbeat.step else at_ns,
        phase_since_ns=heartbeat.phase_since_ns if in_phase else step_since_ns,
        frames_since_ns=at_ns,
        pulse_since_ns=at_ns,
        worked_ns=at_ns,
        worked_beside_ns=at_ns,
    )


def unread(before: Ticks, process: ProcessSample | None, at_ns: int) -> Ticks:
    """At a tick at which its record could not be read, or of a rank without one: whether it works its process tells."""
    worked = _worked(before, process, at_ns)
    return msgspec.structs.replace(
        before,
        moved=False,
        stepped=False,
        pulsed=False,
        worked_ns=worked[0],
        worked_beside_ns=worked[1],
        work=worked[2],
    )


def advanced(before: Ticks, old: Heartbeat, new: Heartbeat, process: ProcessSample | None, moment: TickTimes) -> Ticks:
    """Given the record at the last tick and at this one, return what has moved since; `process` is None where it cannot
    be read."""
    at_ns = moment.at_ns
    stepped = new.step != old.step
    stand = new.frame_changes is not None and new.frame_changes == old.frame_changes
    frames_since_ns = before.frames_since_ns if stand else at_ns
    counted = new.groups != old.groups and at_ns - frames_since_ns <= _FRAMES_NS
    phase_changed = has_changed_phase(old, new)
    pulsed = new.pulse_count != old.pulse_count
    changes = before.counter_changes
    never = before.worked_ns, before.worked_beside_ns, None
    worked_ns, worked_beside_ns, work = never if counts_steps(new) else _worked(before, process, at_ns)
    return Ticks(
        step_since_ns=_dated(old.last_step_ns, new.last_step_ns, moment) if stepped else before.step_since_ns,
        counters_since_ns=at_ns if counted else before.counters_since_ns,
        counter_changes=0 if stepped else changes + counted,
        phase_since_ns=_dated(old.phase_since_ns, new.phase_since_ns, moment)
        if phase_changed
        else before.phase_since_ns,
        frames_since_ns=frames_since_ns,
        pulse_since_ns=at_ns if pulsed else before.pulse_since_ns,
        moved=stepped or phase_changed or (counted and (not counts_steps(old) or changes >= _OWN_CHANGES)),
        stepped=stepped,
        pulsed=pulsed,
        still=_still(before, process, stepped or phase_changed, at_ns),
        worked_ns=worked_ns,
        worked_beside_ns=worked_beside_ns,
        work=work,
    )


def has_changed_phase(old: Heartbeat, new: Heartbeat) -> bool:
    """Whether a rank is in another phase, or in the same one anew."""
    return (new.phase, new.phase_since_ns) != (old.phase, old.phase_since_ns)


def without_late_time(ticks: Ticks, at_ns: int, late_ns: int) -> Ticks:
    """Ages without the time in which we were late ourselves: nothing was seen then."""
    if not late_ns:
        return ticks
    return msgspec.structs.replace(
        ticks,
        step_since_ns=min(ticks.step_since_ns + late_ns, at_ns),
        counters_since_ns=min(ticks.counters_since_ns + late_ns, at_ns),
        phase_since_ns=min(ticks.phase_since_ns + late_ns, at_ns),
        frames_since_ns=min(ticks.frames_since_ns + late_ns, at_ns),
        pulse_since_ns=min(ticks.pulse_since_ns + late_ns, at_ns),
        worked_ns=min(ticks.worked_ns + late_ns, at_ns),
        worked_beside_ns=min(ticks.worked_beside_ns + late_ns, at_ns),
    )


def _still(before: Ticks, process: ProcessSample | None, moved: bool, at_ns: int) -> tuple[int, int, int] | None:
    if moved or process is None:
        return None
    if before.still is not None:
        return before.still
    long_enough = at_ns - max(before.step_since_ns, before.phase_since_ns) >= _STILL_SECONDS * SECOND_NS
    own = _cpu_ticks(process)
    return (at_ns, own, own + _reaped_ticks(process)) if long_enough else None


def _worked(before: Ticks, process: ProcessSample | None, at_ns: int) -> tuple[int, int, Work | None]:
    """When a rank that starts was last seen at work, when any but its training thread was, and from where its work is
    counted on."""
    if process is None:
        return at_ns, at_ns, None  # what is not seen may work
    was = before.work
    if was is not None and at_ns - was.at_ns < _START_SECONDS * SECOND_NS:
        return before.worked_ns, before.worked_beside_ns, was
    own = process.cpu_ticks + sum(child.cpu_ticks or 0 for child in process.children)
    whole = own + process.reaped_ticks + _reaped_ticks(process)
    moved_bytes = (process.read_bytes or 0) + (process.write_bytes or 0)
    now = Work(at_ns, process.main_thread_cpu_ticks, own, whole, moved_bytes)
    if was is None:
        return before.worked_ns, before.worked_beside_ns, now
    seconds = (at_ns - was.at_ns) / SECOND_NS
    ticks = seconds * CLOCK_TICKS_PER_SECOND
    trained, own, whole = now.training - was.training, own - was.own, whole - was.whole
    flows = moved_bytes - was.moved_bytes >= _START_BYTES * seconds
    works, works_beside = (
        flows or own - by >= _START_SHARE * ticks or programs_work((whole - by) / ticks) for by in (0, trained)
    )
    return at_ns if works else before.worked_ns, at_ns if works_beside else before.worked_beside_ns, now


def _cpu_ticks(process: ProcessSample) -> int:
    return process.main_thread_cpu_ticks + sum(child.cpu_ticks or 0 for child in process.children)


def _reaped_ticks(process: ProcessSample) -> int:
    return sum(child.reaped_ticks for child in process.children)


def _dated(old_ns: int | None, new_ns: int | None, moment: TickTimes) -> int:
    """When a word changed: as the record dates it, where that lies between the two readings."""
    if new_ns is not None and max(old_ns or 0, moment.last_ns - _READ_BEFORE_NS) < new_ns <= moment.at_ns:
        return new_ns
    return moment.at_ns
