"""Whether a process without a hook works, by what can be seen of it from outside.

A quiet process only prompts a look: stacks decide. It is judged by its main thread where that was seen to work, else
by the threads that train as far as these are known, however little they do (`thread_levels`); for what its other
threads do (a metrics thread, NCCL's proxies and watchdogs) neither hides a standstill nor proves one. Nor does what a
child of it does all the time, whatever the rank does (a collector of metrics).

Under NCCL a thread that waits spins: its CPU says nothing. But it never goes to sleep of its own will, which training
does many times a second (measured: a rank that waits in `barrier` for a communicator's connection, or in `item()`, has
its main thread at 100 % and in state R at every look, its GPU at 0 % or 100 %, the GPU's memory controller at 0 %).
Training on a GPU reads and writes its memory.
"""

import msgspec

from stallwatch.model.gpu import Gpu
from stallwatch.model.process import ENDED, STOPPED, TRACED
from stallwatch.model.snapshot import ProcessSample
from stallwatch.progress.cpu_time import CLOCK_TICK_NS, CLOCK_TICKS_PER_SECOND, programs_work
from stallwatch.progress.thread_levels import (
    SPINNING_WAKES,
    ThreadLevel,
    have_communicated,
    leveled,
    passed_over,
    training_stands,
)
from stallwatch.progress.usual_pace import STANDS_NS, UsualPace, paced

# Less than this between two ticks is polling and house-keeping: some percent of a core, a log line, a heartbeat.
_IDLE_TICKS = 3  # of a hundredth of a second, in a second
_MUCH_TICKS = 20  # one tick with less than this may be a look of ours, or a log line: two in a row are work
_IDLE_BYTES = 64 << 10
_WORKED_TICKS = 10  # as many make a job, or a thread, that was seen to work
# Times what its children used, and its threads read and wrote, while it trained; a loader's workers have more to do now
# and then.
_MORE_THAN_USUAL = 2.0
_USUAL_TICKS = 16  # over about as many ticks what is usual is averaged


class Counts(msgspec.Struct, frozen=True):
    """What a process has done so far."""

    ticks: int  # of CPU, all threads
    main_ticks: int
    main_wakes: int | None  # how often its main thread went to sleep of its own will; None: nothing tells
    children_ticks: int  # of what it started: a compiler, a loader's worker
    moved_bytes: int
    main_moved_bytes: int | None  # None: nothing tells
    reaped_ticks: int = 0  # of the programs that its children had run, and that have ended


class Outside(msgspec.Struct, frozen=True):
    """A process without a hook, as it was at the last tick. Times are CLOCK_MONOTONIC nanoseconds of our snapshots."""

    quiet_since_ns: int
    counts: Counts
    at_ns: int = 0
    was_busy: bool = False
    worked_ticks: int = 0  # at which it worked, so far
    main_worked_ticks: int = 0  # at which its main thread did
    has_gpu: bool = False  # it was seen to use one, whatever the driver answers now
    children_usual: float = 0.0  # CPU ticks a second that its children use while it trains
    bytes_usual: float = 0.0  # a second, of all its threads, while it trains
    trained_ticks: int = 0  # at which the threads that train did
    threads: tuple[ThreadLevel, ...] = ()
    pace: UsualPace = UsualPace()
    working_since_ns: int = 0  # it has worked since then, with pauses of a few seconds; it may be quiet by now

    def standing_since_ns(self) -> int:
        """Since when a quiet process does nothing: since it was last seen at the pace of its training, where it is so
        no more. What a main thread does now and then while it stands (a log line, a wait that polls) is no such pace,
        so this stays as it is as long as it stands."""
        stands = self.pace.kept_ns <= self.at_ns - STANDS_NS
        return max(self.quiet_since_ns, self.pace.kept_ns) if stands else self.quiet_since_ns

    def works_since_ns(self) -> int | None:
        """Since when it works, with pauses of a few seconds; None: it does not."""
        return self.working_since_ns if self.at_ns - self.quiet_since_ns <= STANDS_NS else None

    @property
    def has_communicated(self) -> bool:
        """Whether it was seen to take part in collectives for long, as training does."""
        return have_communicated(self.threads)

    @property
    def has_worked(self) -> bool:
        """Whether it used the CPU at all since it was first seen."""
        return self.worked_ticks >= _WORKED_TICKS


def seen_from_outside(
    before: Outside | None, process: ProcessSample | None, gpu: Gpu | None, at_ns: int, late_ns: int
) -> Outside | None:
    """Given a process and its GPU at this tick, return since when it is quiet; None while it was never read: unknown is
    not quiet. A tick at which it could not be read changes nothing."""
    if process is None:
        return before
    now = _counts(process)
    has_gpu = gpu is not None or (before is not None and before.has_gpu)
    if before is None:
        threads = leveled((), process.busiest_threads, 1.0, has_gpu=has_gpu)
        return Outside(at_ns, now, at_ns, has_gpu=has_gpu, threads=threads, working_since_ns=at_ns)
    if process.state == TRACED or (process.state in STOPPED and process.tracer_pid):
        # Our own look holds it for its stack, which no tracer is told of, or somebody debugs it: neither work nor time
        # in which it could have any.
        since_ns = min(before.quiet_since_ns + at_ns - before.at_ns, at_ns)
        threads = passed_over(before.threads, process.busiest_threads)
        return msgspec.structs.replace(
            before, quiet_since_ns=since_ns, counts=now, at_ns=at_ns, has_gpu=has_gpu, threads=threads
        )
    was, seconds = before.counts, max(1.0, (at_ns - before.at_ns) / 1e9)
    spins = has_gpu and _spins(was, now, seconds)
    threads = leveled(before.threads, process.busiest_threads, seconds, has_gpu=has_gpu)
    by_main = before.main_worked_ticks >= _WORKED_TICKS
    stands = None if by_main else training_stands(threads)
    moved = _moved(was, now, by_main or stands is True) / seconds
    usual_bytes = before.bytes_usual if stands is True else 0.0
    fed = process.state in STOPPED | ENDED or moved > max(_IDLE_BYTES, _MORE_THAN_USUAL * usual_bytes)
    fed = fed or (gpu is not None and gpu.moves_memory)
    main = 0 if spins else now.main_ticks - was.main_ticks
    whole = 0 if spins else now.ticks - was.ticks
    main_works = main / seconds > _IDLE_TICKS
    children = (now.children_ticks - was.children_ticks) / seconds
    programs = children + (now.reaped_ticks - was.reaped_ticks) / seconds
    children = programs if programs_work(programs / CLOCK_TICKS_PER_SECOND) else children
    own = main if by_main else 0 if stands is True else whole
    used = max(own / seconds, 0.0 if children <= _MORE_THAN_USUAL * before.children_usual else children)
    busy = fed or used > _IDLE_TICKS
    works = fed or used > _MUCH_TICKS or (busy and before.was_busy)
    trains = main_works or stands is False
    weight = 1 / min(before.trained_ticks + 1, _USUAL_TICKS) if trains else 0.0
    wakes, run_ns = _main_did(before, threads, now)
    # What stopped us for a while may have stopped the job as well.
    since_ns = at_ns if works else min(before.quiet_since_ns + late_ns, at_ns)
    return Outside(
        since_ns,
        now,
        at_ns,
        busy,
        before.worked_ticks + (busy or whole / seconds > _IDLE_TICKS),
        before.main_worked_ticks + main_works,
        has_gpu,
        before.children_usual + (children - before.children_usual) * weight,
        before.bytes_usual + ((now.moved_bytes - was.moved_bytes) / seconds - before.bytes_usual) * weight,
        before.trained_ticks + trains,
        threads,
        paced(before.pace, wakes, run_ns, at_ns, at_ns - before.at_ns, works=works or stands is False),
        at_ns if works and at_ns - before.quiet_since_ns > STANDS_NS + late_ns else before.working_since_ns,
    )


def _moved(was: Counts, now: Counts, by_main: bool) -> int:
    if by_main and was.main_moved_bytes is not None and now.main_moved_bytes is not None:
        return now.main_moved_bytes - was.main_moved_bytes
    return now.moved_bytes - was.moved_bytes


def _counts(process: ProcessSample) -> Counts:
    return Counts(
        process.cpu_ticks,
        process.main_thread_cpu_ticks,
        process.main_thread_wakes,
        sum(child.cpu_ticks or 0 for child in process.children),
        (process.read_bytes or 0) + (process.write_bytes or 0),
        process.main_thread_moved_bytes,
        sum(child.reaped_ticks for child in process.children),
    )


def _main_did(before: Outside, threads: tuple[ThreadLevel, ...], now: Counts) -> tuple[int | None, int]:
    """How often its main thread went to sleep of its own will since the last tick, and for how many nanoseconds it
    was on a processor."""
    was = before.counts
    wakes = None if was.main_wakes is None or now.main_wakes is None else now.main_wakes - was.main_wakes
    if threads and before.threads and threads[0].tid == before.threads[0].tid:
        return wakes, threads[0].run_ns - before.threads[0].run_ns
    return wakes, (now.main_ticks - was.main_ticks) * CLOCK_TICK_NS


def _spins(was: Counts, now: Counts, seconds: float) -> bool:
    """Whether its main thread was on the CPU, or ready for it, all the time."""
    if was.main_wakes is None or now.main_wakes is None:
        return False
    return now.main_ticks > was.main_ticks and now.main_wakes - was.main_wakes <= SPINNING_WAKES * seconds
