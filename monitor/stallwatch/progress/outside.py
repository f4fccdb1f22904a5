"""Whether a process without a hook works, by what can be seen of it from outside."""

from stallwatch.model.snapshot import ProcessSample

# Less than this between two ticks is polling and house-keeping: some percent of a core, a log line, a heartbeat.
_IDLE_TICKS = 3  # of a hundredth of a second
_IDLE_BYTES = 64 << 10


def work_of(process: ProcessSample) -> tuple[int, int]:
    """Return the counters of its work, and of what it started (a compiler, a loader's worker): CPU ticks, bytes."""
    ticks = process.cpu_ticks + sum(child.cpu_ticks for child in process.children)
    return ticks, (process.read_bytes or 0) + (process.write_bytes or 0)


def worked(before: tuple[int, int], now: tuple[int, int]) -> bool:
    """Whether it did more than idle between two ticks."""
    return now[0] - before[0] > _IDLE_TICKS or now[1] - before[1] > _IDLE_BYTES
