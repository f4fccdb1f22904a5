"""Whether a rank moves between its last two looks, judged on the thread that blocks.

What is none of its doing does not count: NCCL's spinning threads, trackers, our own pulse, a saver's collectives.
"""

from typing import NamedTuple

from stallwatch.diagnosis.activity.looks import Look, ThreadLook
from stallwatch.diagnosis.activity.standing import STRONG_ROLES, Standing
from stallwatch.diagnosis.activity.threads import main_thread
from stallwatch.diagnosis.frames import Origin, function, place
from stallwatch.diagnosis.frames_meaning import meaning
from stallwatch.model.evidence import CodeFrame, Recorder, ThreadStack
from stallwatch.model.verdict import Fact

# Shares of one core. A wait that wakes up to look again (DataLoader's five-second poll, FileBaton's 0.1 s) takes less
# than one per cent; work takes much more, also on a shared core.
_WORKING_SHARE = 0.05
_CLOCK_TICKS_PER_SECOND = 100  # sysconf(_SC_CLK_TCK) of every Linux that runs torch
_ASSUMED_SECONDS = 5.0  # between looks that carry no times
_PROGRESS_BYTES = 1 << 20


class Moment(NamedTuple):
    """The judged thread at one look."""

    look: Look
    thread: ThreadStack | None
    kernel: ThreadLook
    standing: Standing


class Motion(NamedTuple):
    moving: bool | None
    cpu_share: float | None  # of the judged thread, in cores
    facts: tuple[Fact, ...]


def motion(first: Moment, last: Moment, operations: bool | None) -> Motion:
    """Compare two looks. `operations`: whether the thread issued new collectives between them, by the recorder."""
    seconds = _seconds(first, last)
    share = _share(first.kernel.cpu_ticks, last.kernel.cpu_ticks, seconds)
    signs = [
        _steps(first, last),
        Fact("it issued new operations between the two looks", "flight recorder") if operations else None,
        _stack(first, last),
        _cpu(share, last),
        _bytes(first, last),
        _children(first, last, seconds),
    ]
    facts = tuple(sign for sign in signs if sign)
    if facts:
        return Motion(True, share, facts)
    if last.kernel.state in ("T", "t") and first.kernel.state in ("T", "t"):
        return Motion(False, share, (Fact("it stood stopped at both looks", "/proc"),))
    if not (first.thread and last.thread and first.thread.frames and last.thread.frames):
        return Motion(None, share, ())
    if same_lines := _busy_children(first, last, seconds):
        return Motion(None, share, (same_lines,))
    if last.standing.where == "busy_loop":
        # It computes for long, or spins: nothing that was read tells which.
        return Motion(None, share, (Fact("it was at the same lines at both looks, on the CPU", "py-spy"),))
    if not _same_job_lines(first.thread, last.thread):
        return Motion(None, share, (Fact("it changed between neighbouring lines of one function", "py-spy"),))
    return Motion(False, share, (Fact("its stack was the same at both looks", "py-spy"),))


def _seconds(first: Moment, last: Moment) -> float:
    before = first.look.process.at_ns if first.look.process else None
    after = last.look.process.at_ns if last.look.process else None
    return (after - before) / 1e9 if before is not None and after is not None and after > before else _ASSUMED_SECONDS


def _share(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None:
        return None
    return max(0, after - before) / _CLOCK_TICKS_PER_SECOND / max(seconds, 0.1)


def _steps(first: Moment, last: Moment) -> Fact | None:
    before, after = first.look.heartbeat, last.look.heartbeat
    if before and after and before.step is not None and after.step is not None and after.step > before.step:
        return Fact(f"its step went from {before.step} to {after.step} between the two looks", "heartbeat")
    return None


def _stack(first: Moment, last: Moment) -> Fact | None:
    if not (first.thread and last.thread and first.thread.frames and last.thread.frames):
        return None
    if first.thread.os_thread_id != last.thread.os_thread_id:
        return Fact("another thread was at work at the second look", "py-spy")
    same_wait = first.standing.where == last.standing.where != "busy_loop"
    if _way(first) != _way(last) or (not same_wait and not _same_job_lines(first.thread, last.thread)):
        return Fact("its stack changed between the two looks", "py-spy")
    return None


def _way(moment: Moment) -> tuple[tuple[str, str, int], ...]:
    """The calls that lead to the wait, outermost first, as far as they say something.

    What a wait does inside itself comes and goes: a loader's poll, a helper of threading. So does the line of a job's
    own polling loop, unless it is inside a call that tells what it waits for.
    """
    frames = moment.thread.frames if moment.thread else ()
    return _calls(frames, polls=not moment.standing.roles & STRONG_ROLES)


def _calls(frames: tuple[CodeFrame, ...], *, polls: bool) -> tuple[tuple[str, str, int], ...]:
    calls: list[tuple[str, str, int]] = []
    for frame in reversed(frames):
        if place(frame.filename).origin in (Origin.STDLIB, Origin.SYNTHETIC, Origin.LAUNCHER):
            continue
        means = meaning(frame) is not None
        calls.append((frame.filename, function(frame.name), 0 if means else frame.line))
        if means:
            break
    if polls and calls:
        calls[-1] = (*calls[-1][:2], 0)
    return tuple(calls)


def _same_job_lines(first: ThreadStack, last: ThreadStack) -> bool:
    lines = [
        [(f.filename, f.line) for f in thread.frames if place(f.filename).origin in (Origin.JOB, Origin.LIBRARY)]
        for thread in (first, last)
    ]
    return lines[0] == lines[1]


def _cpu(share: float | None, last: Moment) -> Fact | None:
    # Waiting for the GPU or in a collective may spin, and a busy loop proves nothing by being busy.
    if share is None or share < _WORKING_SHARE:
        return None
    if last.standing.where in ("gpu_sync", "collective", "busy_loop", "gil") or last.standing.in_collective is None:
        return None
    return Fact(f"the thread used {share:.0%} of a core between the two looks", "/proc")


def _bytes(first: Moment, last: Moment) -> Fact | None:
    if last.standing.where in ("gpu_sync", "collective", "gil", "init", "store"):
        return None
    before, after = first.look.process, last.look.process
    for name in ("read", "write"):
        old, new = (getattr(process, f"{name}_bytes", None) for process in (before, after))
        if old is not None and new is not None and new - old >= _PROGRESS_BYTES:
            done = "read" if name == "read" else "wrote"
            return Fact(f"its process {done} {(new - old) / (1 << 20):.0f} MiB between the two looks", "/proc")
    return None


def _children(first: Moment, last: Moment, seconds: float) -> Fact | None:
    if not last.standing.waits_for_children:
        return None
    before = {child.pid: child.cpu_ticks for child in first.look.process.children} if first.look.process else {}
    after = last.look.process.children if last.look.process else ()
    for child in sorted(after, key=lambda child: child.pid):
        share = _share(before.get(child.pid), child.cpu_ticks, seconds)
        if share is not None and share >= _WORKING_SHARE and not _spins(first, last, child.pid):
            return Fact(f"its child process {child.pid} used {share:.0%} of a core between the two looks", "/proc")
    stacks = dict(first.look.children)
    for pid, threads in last.look.children:
        old = {thread.os_thread_id: thread for thread in stacks.get(pid, ())}
        for thread in threads:
            was = old.get(thread.os_thread_id)
            if (
                was
                and was.frames
                and thread.frames
                and _calls(was.frames, polls=True) != _calls(thread.frames, polls=True)
            ):
                return Fact(f"the stack of its child process {pid} changed between the two looks", "py-spy")
    return None


def _busy_children(first: Moment, last: Moment, seconds: float) -> Fact | None:
    """A loader's worker that computes where it computed before: for long, or for ever. Nothing that was read tells."""
    before = {child.pid: child.cpu_ticks for child in first.look.process.children} if first.look.process else {}
    for child in last.look.process.children if last.look.process else ():
        share = _share(before.get(child.pid), child.cpu_ticks, seconds)
        if share is not None and share >= _WORKING_SHARE and _spins(first, last, child.pid):
            return Fact(f"its child process {child.pid} was at the same lines at both looks, on the CPU", "py-spy")
    return None


def _spins(first: Moment, last: Moment, pid: int) -> bool:
    """Whether CPU proves nothing for this child: a loader's worker makes a batch, and this one is at the same lines of
    the job's own code as before. A pool's or a compiler's work may be one long call."""
    if last.standing.where != "dataloader":
        return False
    was, now = (main_thread(dict(look.children).get(pid, ()), pid) for look in (first.look, last.look))
    if not (was and now and was.frames and now.frames and _same_job_lines(was, now)):
        return False
    # The loader's own loop, at the end of every worker's stack, is not what it was asked to do.
    return place(now.frames[0].filename).origin is Origin.JOB


def new_operations(recorders: tuple[Recorder, ...], ident: str) -> bool | None:
    """Whether the thread issued operations between the recorder's last two looks. None: not told.

    A background thread's operations do not count; where the stack carries no ident, one issuing thread is the loop."""
    newest: dict[str, dict[int, int]] = {}
    recorders = tuple(recorder for recorder in recorders if not recorder.cut_short)
    for recorder in recorders:
        ids = [op.record_id for op in recorder.operations]
        newest.setdefault(recorder.backend, {})[recorder.look] = max(ids, default=-1)
    issuers = {op.thread_id for recorder in recorders for op in recorder.operations if op.thread_id is not None}
    told = None
    for recorder in recorders:
        seen = newest[recorder.backend]
        if len(seen) < 2 or recorder.look != max(seen):
            continue
        fresh = [op for op in recorder.operations if op.record_id > seen[sorted(seen)[-2]]]
        told = told or False
        if ident and issuers:
            told = told or any(op.thread_id == ident for op in fresh)
        elif not issuers:  # dumps before 2.9 name no thread: only the default group is the loop's for sure
            told = told or any(op.group_description == "default_pg" for op in fresh)
            if fresh and not told:
                return None
        elif len(issuers) <= 1:
            told = told or bool(fresh)
        elif fresh:
            return told or None
    return told


def issuers(recorders: tuple[Recorder, ...]) -> frozenset[str]:
    """Idents of the threads that issued operations."""
    return frozenset(op.thread_id for recorder in recorders for op in recorder.operations if op.thread_id is not None)
