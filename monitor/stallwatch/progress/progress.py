"""Whether a rank moves between two looks, judged on the thread that blocks.

What is none of its doing does not count: NCCL's spinning threads, trackers, our own pulse, a saver's collectives.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from stallwatch.model.process import STOPPED
from stallwatch.model.verdict import Fact
from stallwatch.progress.cpu_time import CLOCK_TICKS_PER_SECOND, programs_work
from stallwatch.progress.observation import Observation, SeenChild, Stack

# Shares of one core. A wait that wakes up to look again (DataLoader's five-second poll, FileBaton's 0.1 s) takes less
# than one per cent; work takes much more, also on a shared core.
_WORKING_SHARE = 0.05
_SPINNING_SHARE = 0.5  # of a thread that asks again without a pause, on a core that it shares
_OF_WORK_SHARE = 0.01  # of one of several processes that work together; who polls for the others takes less
_RAN_TICKS = 2  # one may be the kernel's own, of a look that attached to it
_ASSUMED_SECONDS = 5.0  # between looks that carry no times
_PROGRESS_BYTES = 1 << 20
_CHILD_BYTES = 128 << 10  # a second; a job within the job writes its hooks' records: 32 KiB for each rank
# Others pause a process too (somebody's profiler, a second monitor): a few wakes in a minute are none of its own.
_MEETS_WAKES, _MEETS_EVERY_SECOND, _LEAST_EVERY_SECOND = 4, 10, 0.5
_FLOWS_WAKES = 3  # one may be the time-out of a client that then asks again

_ROUND_CHANGES = 3  # of frames; one may be of a step before
# Since its last step: a loop that waits for what never comes (`while not ready(): pass`) is at several lines as well,
# and nothing that was read tells it from a validation.
_ROUND_SECONDS = 300.0

ProgressAnswer = Literal["moves", "stands", "unknown"]


class Progress(NamedTuple):
    """Whether something moves between two observations, and why we say so."""

    answer: ProgressAnswer
    cpu_share: float | None = None  # of the judged thread, in cores
    because: tuple[Fact, ...] = ()
    between_stops: bool = False  # it was stopped at both looks, and went on between them

    @property
    def moves(self) -> bool | None:
        """The answer as a truth value; None: unknown."""
        return None if self.answer == "unknown" else self.answer == "moves"


def compare(
    first: Observation, last: Observation, operations: bool | None, earlier: Sequence[Observation] = ()
) -> Progress:
    """Given two looks at a rank, return whether it moves. `operations`: whether its thread issued new collectives
    between them, by the recorder; None where nothing tells. `earlier`: looks before these."""
    seconds = _seconds(first, last)
    share = _share(first.cpu_ticks, last.cpu_ticks, seconds)
    signs = [
        _steps(first, last),
        Fact("it issued new operations between the two looks", "flight recorder") if operations else None,
        _stack(first, last),
        _cpu(share, last),
        _bytes(first, last),
        _flow(first, last, seconds),
        _children(first, last, seconds),
        _awaited(first, last, seconds),
        _meets(first, last, seconds, share),
        _goes_round(first, last, seconds),
    ]
    if went_on := _went_on(first, last):
        return Progress("moves", share, (went_on,), between_stops=True)
    facts = tuple(sign for sign in signs if sign)
    if facts:
        return Progress("moves", share, facts)
    if last.state in STOPPED and first.state in STOPPED:
        return Progress("stands", share, (Fact("it stood stopped at both looks", "/proc"),))
    if last.where == "gil" and not last.stack and first.state == last.state == "S":
        return Progress("stands", share, (Fact("no Python thread of it ran between the two looks", "heartbeat"),))
    if not (first.stack and last.stack):
        return Progress("unknown", share)
    if same_lines := _busy_children(first, last, seconds):
        return Progress("unknown", share, (same_lines,))
    if last.where == "busy_loop" and (goes_round := _was_elsewhere(earlier, first, last)):
        return Progress("moves", share, (goes_round,))
    if last.where == "busy_loop":
        # It computes for long, or spins: nothing that was read tells which.
        return Progress("unknown", share, (Fact("it was at the same lines at both looks, on the CPU", "py-spy"),))
    if first.stack.lines != last.stack.lines:
        return Progress("unknown", share, (Fact("it changed between neighbouring lines of one function", "py-spy"),))
    return Progress("stands", share, (Fact("its stack was the same at both looks", "py-spy"),))


def _seconds(first: Observation, last: Observation) -> float:
    before, after = first.at_ns, last.at_ns
    return (after - before) / 1e9 if before is not None and after is not None and after > before else _ASSUMED_SECONDS


def _share(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None:
        return None
    return max(0, after - before) / CLOCK_TICKS_PER_SECOND / max(seconds, 0.1)


def _went_on(first: Observation, last: Observation) -> Fact | None:
    """Stopped at both looks, and not between them: as cpulimit does, or who lets ranks share a node by turns."""
    if first.state not in STOPPED or last.state not in STOPPED:
        return None
    ticks = (last.cpu_ticks or 0) - (first.cpu_ticks or 0) if None not in (first.cpu_ticks, last.cpu_ticks) else 0
    beat = first.pulses is not None and last.pulses is not None and last.pulses > first.pulses
    if not beat and ticks < _RAN_TICKS:
        return None
    return Fact("it was stopped at both looks, and went on between them", "heartbeat" if beat else "/proc")


def _steps(first: Observation, last: Observation) -> Fact | None:
    if first.step is not None and last.step is not None and last.step > first.step:
        return Fact(f"its step went from {first.step} to {last.step} between the two looks", "heartbeat")
    return None


def _stack(first: Observation, last: Observation) -> Fact | None:
    if not (first.stack and last.stack):
        return None
    if first.stack.thread != last.stack.thread:
        return Fact("another thread was at work at the second look", "py-spy")
    # A loop that computes is at one of its lines or another, whether it ends or not.
    if first.stack.way != last.stack.way or (first.where != last.where and first.stack.lines != last.stack.lines):
        return Fact("its stack changed between the two looks", "py-spy")
    return None


def _cpu(share: float | None, last: Observation) -> Fact | None:
    # Waiting for the GPU or in a collective may spin, and a busy loop proves nothing by being busy.
    if share is None or share < _WORKING_SHARE:
        return None
    if last.where in ("gpu_sync", "collective", "busy_loop", "gil") or last.in_collective is None:
        return None
    return Fact(f"the thread used {share:.0%} of a core between the two looks", "/proc")


def _bytes(first: Observation, last: Observation) -> Fact | None:
    if last.where in ("gpu_sync", "collective", "gil", "init", "store"):
        return None
    if last.waits_by_itself and first.moved_bytes is not None and last.moved_bytes is not None:
        if (moved := last.moved_bytes - first.moved_bytes) < _PROGRESS_BYTES:
            return None
        return Fact(f"it read or wrote {moved / (1 << 20):.0f} MiB between the two looks", "/proc")
    for old, new, done in (
        (first.read_bytes, last.read_bytes, "read"),
        (first.write_bytes, last.write_bytes, "wrote"),
    ):
        if old is not None and new is not None and new - old >= _PROGRESS_BYTES:
            return Fact(f"its process {done} {(new - old) / (1 << 20):.0f} MiB between the two looks", "/proc")
    return None


def _flow(first: Observation, last: Observation, seconds: float) -> Fact | None:
    """A blocking receive sleeps until bytes are there, and so does who waits for a file system: small files, pages of a
    mapped one. What a polling loop or a time-out wakes is none; who stands at a pipe has read or written some, which
    the kernel counts of pipes, and not of recv(2)."""
    moved = first.own_bytes is not None and last.own_bytes is not None and last.own_bytes > first.own_bytes
    at_a_pipe = first.at_a_pipe and last.at_a_pipe and moved
    if not (at_a_pipe or (first.receives and last.receives)):
        return None
    woke = _came(first.wakes, first.own_wakes, last.wakes, seconds)
    return Fact(f"what it waits for came {woke} times between the two looks", "/proc") if woke else None


def _came(before: int | None, own: int, now: int | None, seconds: float) -> int:
    """How often a blocking receive woke, 0 where that is no flow."""
    if before is None or now is None or now - before - own < max(_FLOWS_WAKES, _LEAST_EVERY_SECOND * seconds):
        return 0
    return now - before - own


def _children(first: Observation, last: Observation, seconds: float) -> Fact | None:
    if not last.waits_for_children:
        return None
    before = {child.pid: child for child in first.children}
    for child in sorted(last.children, key=lambda child: child.pid):
        share = _share_of(before.get(child.pid), child, seconds)
        if share is not None and share >= _WORKING_SHARE and not _spins(before.get(child.pid), child, last):
            return Fact(f"its child process {child.pid} used {share:.0%} of a core between the two looks", "/proc")
    if (together := _together(first, last, seconds)) >= _WORKING_SHARE:
        return Fact(f"its child processes used {together:.0%} of a core between the two looks", "/proc")
    if programs_work(programs := _by_programs(first, last, seconds)):
        return Fact(f"programs of its child processes used {programs:.0%} of a core between the two looks", "/proc")
    for child in last.children:
        if moved := _moved_by(before.get(child.pid), child, last, seconds):
            text = f"its child process {child.pid} read and wrote {moved / (1 << 20):.0f} MiB between the two looks"
            return Fact(text, "/proc")
    for child in last.children:
        known = before.get(child.pid)
        old = {stack.thread: stack for stack in known.threads} if known else {}
        for stack in child.threads:
            was: Stack | None = old.get(stack.thread)
            if was and was.polling_way != stack.polling_way:
                return Fact(f"the stack of its child process {child.pid} changed between the two looks", "py-spy")
    return None


def _moved_by(before: SeenChild | None, child: SeenChild, last: Observation, seconds: float) -> int:
    """Bytes that a copy or a download has moved, which needs hardly any CPU; 0 where that is no flow. What it had run
    to its end counts as its own, and a loop that polls by python3 reads megabytes; so does a loader's worker that
    rejects every sample."""
    if before is None or before.moved_bytes is None or child.moved_bytes is None or last.where == "dataloader":
        return 0
    moved = child.moved_bytes - before.moved_bytes
    flows = moved >= max(_PROGRESS_BYTES, _CHILD_BYTES * seconds)
    return moved if flows and child.reaped_ticks == before.reaped_ticks else 0


def _together(first: Observation, last: Observation, seconds: float) -> float:
    """Shares of all children that work: a launcher, a shell or a pool leaves the work to processes of its own, which
    may have been started since the first look."""
    before = {child.pid: child for child in first.children}
    if not before or last.where == "dataloader":
        return 0.0
    shares = [
        _share_of(before.get(child.pid, SeenChild(child.pid, 0)), child, seconds) or 0.0 for child in last.children
    ]
    return sum(share for share in shares if share >= _OF_WORK_SHARE)


def _by_programs(first: Observation, last: Observation, seconds: float) -> float:
    """Share of all children with the programs that these have run to their end. Of who ends, the CPU passes to who
    waited for it: in the sum it is there once."""
    before = {child.pid: child for child in first.children}
    if not before:
        return 0.0
    left_out = {child.pid for child in (*first.children, *last.children) if child.cpu_ticks is None}
    left_out |= {child.pid for child in last.children if _spins(before.get(child.pid), child, last)}
    was, now = (
        sum((child.cpu_ticks or 0) + child.reaped_ticks for child in look.children if child.pid not in left_out)
        for look in (first, last)
    )
    return _share(was, now, seconds) or 0.0


def _awaited(first: Observation, last: Observation, seconds: float) -> Fact | None:
    """The threads whose end, or result, it waits for: what one of them does is progress of its own."""
    before = {thread.pid: thread for thread in first.awaited}
    for now in last.awaited:
        was = before.get(now.pid)
        if was is None or not (was.main and now.main):
            continue
        if was.main.polling_way != now.main.polling_way:
            return Fact("the stack of the thread that it waits for changed between the two looks", "py-spy")
        if woke := _came(was.answers, was.own_wakes, now.answers, seconds):
            return Fact(f"what the thread that it waits for receives came {woke} times between the two looks", "/proc")
        share = _share_of(was, now, seconds)
        same = was.main.lines == now.main.lines and now.main.is_in_job
        if share is not None and share >= _WORKING_SHARE and not same:
            return Fact(f"the thread that it waits for used {share:.0%} of a core between the two looks", "/proc")
    return None


def _meets(first: Observation, last: Observation, seconds: float, share: float | None) -> Fact | None:
    """A host that waits in a collective sleeps until that ends: who wakes now and then meets its peers again and again,
    as the ranks of a server do that polls its queue. Waits that poll wake far more often (NCCL's with a time-out: a
    hundred times a second), and one that spins says nothing by the few times at which it slept."""
    if not (first.in_collective and last.in_collective) or first.wakes is None or last.wakes is None:
        return None
    if share is not None and share >= _SPINNING_SHARE:
        return None
    woke = last.wakes - first.wakes - first.own_wakes
    if woke < max(_MEETS_WAKES, _LEAST_EVERY_SECOND * seconds) or woke > _MEETS_EVERY_SECOND * seconds:
        return None
    return Fact(f"its waits in collectives ended {woke} times between the two looks", "/proc")


def _goes_round(first: Observation, last: Observation, seconds: float) -> Fact | None:
    """A short sleep in each step looks like one that never ends, at every look; but it ends, again and again, and each
    round calls the other ranks. Who counts steps is known by these."""
    if not last.round_call or first.round_call != last.round_call or last.step is not None:
        return None
    woke = (last.wakes or 0) - (first.wakes or 0) - first.own_wakes
    if first.wakes is None or last.wakes is None or woke < max(_MEETS_WAKES, _LEAST_EVERY_SECOND * seconds):
        return None
    return Fact(f"its sleep ended {woke} times between the two looks, in a loop that calls {last.round_call}", "/proc")


def _was_elsewhere(earlier: Sequence[Observation], first: Observation, last: Observation) -> Fact | None:
    """A loop of few lines that computes is at the same ones at two looks by chance (two of five pairs of looks at a
    validation of 150 s). Seen elsewhere in the same step, it goes round while its frames change; in one long call they
    do not. Believed of the first minutes of a step."""
    if first.frame_changes is None or last.frame_changes is None or last.stack is None:
        return None
    if last.frame_changes - first.frame_changes < _ROUND_CHANGES or last.step is None:
        return None
    if last.stepped_ns is None or last.at_ns is None or last.at_ns - last.stepped_ns > _ROUND_SECONDS * 1e9:
        return None
    for look in earlier:
        computed = look.where == "busy_loop" and look.step == last.step
        if computed and look.stack and (look.stack.thread, look.stack.way) != (last.stack.thread, last.stack.way):
            return Fact("it computes, its frames change, and it was elsewhere at an earlier look", "heartbeat")
    return None


def _busy_children(first: Observation, last: Observation, seconds: float) -> Fact | None:
    """A loader's worker that computes where it computed before: for long, or for ever. Nothing that was read tells."""
    before = {child.pid: child for child in first.children}
    for child in last.children:
        share = _share_of(before.get(child.pid), child, seconds)
        if share is not None and share >= _WORKING_SHARE and _spins(before.get(child.pid), child, last):
            return Fact(f"its child process {child.pid} was at the same lines at both looks, on the CPU", "py-spy")
    return None


def _share_of(before: SeenChild | None, child: SeenChild, seconds: float) -> float | None:
    return _share(before.cpu_ticks if before else None, child.cpu_ticks, seconds)


def _spins(before: SeenChild | None, child: SeenChild, last: Observation) -> bool:
    """Whether CPU proves nothing for this child: a loader's worker makes a batch, and this one is at the same lines of
    the job's own code as before. A pool's or a compiler's work may be one long call."""
    if last.where != "dataloader" or before is None or not (before.main and child.main):
        return False
    # The loader's own loop, at the end of every worker's stack, is not what it was asked to do.
    return before.main.lines == child.main.lines and child.main.is_in_job
