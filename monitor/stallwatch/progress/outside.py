"""Whether a process without a hook works, by what can be seen of it from outside.

A quiet process only prompts a look: stacks decide. Under NCCL waiting threads spin, so that their CPU says nothing;
there the GPU is at full utilisation by a kernel that spins, with a memory controller that does nothing and a flat power
draw (measured on H200: 100 %, 0-1 %, flat within some percent, where training reads 60-100 %, above 0, and varies).
"""

import msgspec

from stallwatch.model.gpu import Gpu
from stallwatch.model.snapshot import ProcessSample

# Less than this between two ticks is polling and house-keeping: some percent of a core, a log line, a heartbeat.
_IDLE_TICKS = 3  # of a hundredth of a second
_IDLE_BYTES = 64 << 10
_BUSY_PERCENT = 50  # a GPU below computes nothing worth the name: the process' CPU counts
_STILL_PERCENT = 1  # of its memory controller
_FLAT_SHARE, _FLAT_WATTS = 0.04, 5.0
_WORKED_TICKS = 10  # as many make a job that was seen to work


class Outside(msgspec.Struct, frozen=True):
    """A process without a hook, as it was at the last tick. Times are CLOCK_MONOTONIC nanoseconds of our snapshots."""

    quiet_since_ns: int
    cpu_ticks: int
    bytes_moved: int
    watts: float | None = None  # of its GPU when it last worked
    worked_ticks: int = 0  # at which it worked, so far

    @property
    def has_worked(self) -> bool:
        return self.worked_ticks >= _WORKED_TICKS


def seen_from_outside(
    before: Outside | None, process: ProcessSample | None, gpu: Gpu | None, at_ns: int, late_ns: int
) -> Outside | None:
    """Given a process and its GPU at this tick, return since when it is quiet; None when it cannot be read: unknown is
    not quiet."""
    if process is None:
        return None
    cpu_ticks, bytes_moved = work_of(process)
    watts = gpu.power_watts if gpu else None
    if before is None:
        return Outside(at_ns, cpu_ticks, bytes_moved, watts)
    works = process.state in "TtZX" or bytes_moved - before.bytes_moved > _IDLE_BYTES
    if gpu is not None and _spins(gpu):
        works = works or not _is_flat(before.watts, watts)
    else:
        works = works or cpu_ticks - before.cpu_ticks > _IDLE_TICKS
        works = works or bool(gpu and (gpu.memory_utilization_percent or 0) > _STILL_PERCENT)
    # What stopped us for a while may have stopped the job as well.
    since_ns = at_ns if works else min(before.quiet_since_ns + late_ns, at_ns)
    return Outside(since_ns, cpu_ticks, bytes_moved, watts if works else before.watts, before.worked_ticks + works)


def work_of(process: ProcessSample) -> tuple[int, int]:
    """Return the counters of its work, and of what it started (a compiler, a loader's worker): CPU ticks, bytes."""
    ticks = process.cpu_ticks + sum(child.cpu_ticks or 0 for child in process.children)
    return ticks, (process.read_bytes or 0) + (process.write_bytes or 0)


def _spins(gpu: Gpu) -> bool:
    memory = gpu.memory_utilization_percent
    return (gpu.utilization_percent or 0) >= _BUSY_PERCENT and memory is not None and memory <= _STILL_PERCENT


def _is_flat(before: float | None, now: float | None) -> bool:
    """Unknown is flat: the memory controller has spoken."""
    if before is None or now is None:
        return True
    return abs(now - before) <= max(_FLAT_WATTS, _FLAT_SHARE * before)
