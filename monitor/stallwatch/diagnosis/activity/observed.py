"""A look at a rank as `progress` compares it: its judged thread, its process, and the threads and children of its own
that it waits for."""

from typing import NamedTuple

from msgspec.structs import replace

from stallwatch.diagnosis.activity.awaited_children import only_awaited
from stallwatch.diagnosis.activity.blocking_location import (
    STRONG_ROLES,
    BlockingLocation,
    Circumstances,
    kernel_wait,
    locate,
)
from stallwatch.diagnosis.activity.moved_bytes import moved_bytes, waits_by_itself
from stallwatch.diagnosis.activity.rank_activity import HelperChild, HelperThread, RankActivity
from stallwatch.diagnosis.activity.threads import RankLook, ThreadLook, is_service, main_thread, thread_look
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, function, hint, job_frame, source_text
from stallwatch.diagnosis.frames.meaning import meaning
from stallwatch.diagnosis.recorder.operations import is_autograd, is_started
from stallwatch.model.evidence import ChildProcess, CodeFrame, Operation, Recorder, SourceLine, ThreadStack
from stallwatch.model.verdict import EndsByItself, Fact, Where
from stallwatch.progress.kinds import Doing, kind_of, of_all
from stallwatch.progress.observation import Calls, Lines, Observation, SeenChild, Stack

# The thread that the judged one waits for: a future's result, a join. Where that one stands is the line to look at.


_EXECUTORS = ("concurrent.futures.", "multiprocessing.pool")


def with_awaited_thread(activity: RankActivity, look: RankLook, sources: tuple[SourceLine, ...]) -> RankActivity:
    """Given what a rank does, follow it to the thread of its own process that it waits for, where one alone can be
    meant: the only one of an executor that is at work, else the only one that runs the job's code at all."""
    found = awaited_threads(activity.place.stack, activity.place.os_thread_id, look)
    thread = found[0] if len(found) == 1 else None
    frame = job_frame(thread.frames, sources) if thread else None
    if thread is None or frame is None:
        return activity
    detail = locate(thread.frames, Circumstances(wait=None, on_cpu=thread.active, gpu=False)).detail
    fact = Fact(
        f"it waits for its thread {thread.name or 'without a name'}, which is at {frame.file}:{frame.line} in "
        f"{frame.function}",
        "py-spy",
    )
    awaited = HelperThread(frame, detail, thread.frames)
    return replace(activity, helpers=replace(activity.helpers, awaited=awaited), why=(*activity.why, fact))


# Ways to wait for what another thread of the process gives back, sets or puts.
_FROM_A_THREAD = ("waits for a lock", "waits for a semaphore", "waits for a queue",
                  "waits for an event that another thread", "waits for a condition that another thread")  # fmt: skip


def with_thread_beside(activity: RankActivity, look: RankLook, sources: tuple[SourceLine, ...]) -> RankActivity:
    """Given a rank that waits for a lock or an event, find the line of the one that may hold it, or is to set it, where
    only one other thread runs the job's code. Which it is, no stack tells."""
    place = activity.place
    from_a_thread = place.detail.startswith(_FROM_A_THREAD) and place.shared_lock is None
    others = _others(place.os_thread_id, look) if place.where == "lock" and from_a_thread else []
    frame = job_frame(others[0].frames, sources) if len(others) == 1 else None
    if frame is None:
        return activity
    detail = locate(others[0].frames, _around(others[0], look, sources)).detail
    fact = Fact(f"its only other thread is at {frame.file}:{frame.line} in {frame.function}", "py-spy")
    beside = HelperThread(frame, detail)
    return replace(activity, helpers=replace(activity.helpers, beside=beside), why=(*activity.why, fact))


def awaited_threads(stack: tuple[CodeFrame, ...], own_id: int | None, look: RankLook) -> list[ThreadStack]:
    """The threads for one or all of which a stack waits by a join, a future's result, or in an event loop that gave
    them work: those of an executor that are at work, else the only one that runs the job's code at all; none where
    nothing tells which is meant."""
    waits = _waits_for_a_thread(stack)
    if not waits and not _idles_in_an_event_loop(stack):
        return []
    others = _others(own_id, look)
    pooled = [thread for thread in others if _is_pooled(thread)]
    return pooled or (others if waits and len(others) == 1 else [])


def kind_of_helpers(own: ThreadStack, look: RankLook, sources: tuple[SourceLine, ...]) -> EndsByItself | None:
    """Given a thread that waits for a lock, a queue or another thread, return what the job's other threads do that may
    end by itself: who gives back, or delivers, may be one of them. What sleeps or serves others delivers nothing,
    unless it is what a result is waited for from: an upload, say, between two tries."""
    awaited = awaited_threads(own.frames, own.os_thread_id, look)
    nothing = (None, "request") if awaited else (None, "sleep", "timeout", "request")
    kinds = [_kind(thread, look, sources) for thread in awaited or _others(own.os_thread_id, look)]
    return of_all([kind for kind in kinds if kind not in nothing])


def _kind(thread: ThreadStack, look: RankLook, sources: tuple[SourceLine, ...]) -> EndsByItself | None:
    around = _around(thread, look, sources)
    where = locate(thread.frames, around).where
    return kind_of(Doing(where, sleeps=around.wait == "sleep", on_cpu=thread.active))


def _around(thread: ThreadStack, look: RankLook, sources: tuple[SourceLine, ...]) -> Circumstances:
    """Of a thread beside the judged one."""
    kernel = thread_look(look.process, thread, main=False)
    wait = kernel_wait(kernel.wchan, kernel.state, kernel.waits_on)
    return Circumstances(wait, thread.active, gpu=False, hint=hint(source_text(sources, thread.frames[0])))


def _others(own_id: int | None, look: RankLook) -> list[ThreadStack]:
    return [t for t in look.threads if t.os_thread_id != own_id and not is_service(t) and _runs_the_job(t)]


def _waits_for_a_thread(stack: tuple[CodeFrame, ...]) -> bool:
    """A join or a future's result between the innermost frame and the job's own code."""
    for frame in stack:
        if code_origin(frame.filename).origin is Origin.JOB:
            return False
        found = meaning(frame)
        if found is not None and found.role == "join":
            return True
    return False


def _idles_in_an_event_loop(stack: tuple[CodeFrame, ...]) -> bool:
    modules = [code_origin(frame.filename).module for frame in stack[:2]]
    return len(modules) == 2 and modules[0] == "selectors" and modules[1].startswith("asyncio.")


def _runs_the_job(thread: ThreadStack) -> bool:
    return any(code_origin(frame.filename).origin is Origin.JOB for frame in thread.frames)


def _is_pooled(thread: ThreadStack) -> bool:
    return any(code_origin(frame.filename).module.startswith(_EXECUTORS) for frame in thread.frames)


# Descent into the child processes that a rank waits for: loader workers, compilers, pools.


def with_child(activity: RankActivity, look: RankLook, sources: tuple[SourceLine, ...]) -> RankActivity:
    """Descend: the worker that is at work on something, not one that waits for the next index."""
    for pid, threads in look.children:
        thread = main_thread(threads, pid)
        own = _own_frames(thread.frames) if thread else ()
        if thread is None or not _is_at_work(own):
            continue
        around = Circumstances(
            wait=kernel_wait(child.wchan, child.state, child.waits_on) if (child := _child(look, pid)) else None,
            on_cpu=thread.active,
            gpu=False,
            hint=hint(source_text(sources, own[0])) if own else None,
        )
        standing = locate(own, around)
        frame = job_frame(own, sources)
        fact = Fact(f"its child process {pid} is at {frame.file}:{frame.line}" if frame else f"child {pid}", "py-spy")
        inside = bool(standing.in_collective)
        child_at_work = HelperChild(pid, frame, standing.detail, standing.where, in_collective=inside)
        place = replace(activity.place, waits_on=child.waits_on) if child and child.waits_on else activity.place
        helpers = replace(activity.helpers, child=child_at_work)
        return replace(activity, place=place, helpers=helpers, why=(*activity.why, fact))
    return activity


def _is_at_work(own: tuple[CodeFrame, ...]) -> bool:
    """A worker that has nothing to do waits for an index or a task straight in its library's loop. A checkpoint is
    written by torch's own code."""
    return any(
        code_origin(frame.filename).origin is Origin.JOB
        or (code_origin(frame.filename).module, function(frame.name)) == _SAVES
        for frame in own
    )


_SAVES = ("torch.distributed.checkpoint._async_process_executor", "_execute_save")

# Where a rank may wait for what a child of it would do, answer or give back. A sleep is its own.
_MAY_WAIT: frozenset[Where] = frozenset({"lock", "socket", "filesystem", "dataloader", "checkpoint"})


def with_stopped_child(activity: RankActivity, seen: tuple[RankLook, ...]) -> RankActivity:
    """A child that was stopped at each look goes on with nothing until somebody lets it."""
    processes = [look.process for look in seen if look.process]
    may_wait = activity.helpers.waits_for_children or activity.place.where in _MAY_WAIT
    if activity.end.gone or not processes or not may_wait:
        return activity
    stopped = set.intersection(*({child.pid for child in one.children if child.state == "T"} for one in processes))
    if not stopped:
        return activity
    pid = min(stopped)
    fact = Fact(f"its child process {pid} is stopped (state T)", "/proc")
    return replace(
        activity,
        helpers=replace(activity.helpers, stopped_child=pid),
        progress=replace(activity.progress, ends_by_itself=None),
        why=(*activity.why, fact),
    )


def _child(look: RankLook, pid: int) -> ChildProcess | None:
    return next((child for child in look.process.children if child.pid == pid), None) if look.process else None


def _own_frames(frames: tuple[CodeFrame, ...]) -> tuple[CodeFrame, ...]:
    """What the child was asked to do: beneath that lie the loader, and after a fork the parent's own past."""
    for index, frame in enumerate(frames):
        module = code_origin(frame.filename).module
        if module.startswith("torch.utils.data.") or (module == "multiprocessing.process" and "run" in frame.name):
            return frames[:index]
    return frames


class JudgedThread(NamedTuple):
    """The judged thread at one look."""

    look: RankLook
    thread: ThreadStack | None
    kernel: ThreadLook
    standing: BlockingLocation


def observed(moment: JudgedThread, sources: tuple[SourceLine, ...] = ()) -> Observation:
    """Given the judged thread at one look, and the lines that were read, return what is compared with another look."""
    process, beat, own, awaited = moment.look.process, moment.look.heartbeat, moment.thread, _awaited(moment)
    return Observation(
        at_ns=process.at_ns if process else None,
        step=beat.step if beat else None,
        stepped_ns=beat.last_step_ns if beat else None,
        pulses=beat.pulse_count if beat else None,
        frame_changes=beat.frame_changes if beat else None,
        state=moment.kernel.state,
        stack=_stack(moment.thread, polls=not moment.standing.roles & STRONG_ROLES),
        where=moment.standing.where,
        in_collective=moment.standing.in_collective,
        waits_for_children=moment.standing.waits_for_children,
        cpu_ticks=moment.kernel.cpu_ticks,
        read_bytes=process.read_bytes if process else None,
        write_bytes=process.write_bytes if process else None,
        moved_bytes=moved_bytes(moment.look, own.os_thread_id if own else None, [one.pid for one in awaited]),
        waits_by_itself=waits_by_itself(moment.kernel, moment.standing),
        receives=_receives(moment.thread) or kernel_wait(moment.kernel.wchan, moment.kernel.state) == "file",
        round_call=_round_call(moment, sources),
        wakes=moment.kernel.wakes,
        own_wakes=moment.kernel.own_wakes,
        children=_children(only_awaited(moment.look, moment.kernel, moment.standing.where)),
        awaited=awaited,
    )


def _round_call(moment: JudgedThread, sources: tuple[SourceLine, ...]) -> str:
    """The call to other ranks that each round of the innermost loop of its stack makes, in which it sleeps; "" for
    none. All between that loop and the sleep must be the job's own code, whose lines were read."""
    if moment.thread is None or kernel_wait(moment.kernel.wchan, moment.kernel.state) != "sleep":
        return ""
    lines, call = {(line.file, line.line): line for line in sources}, ""
    for frame in moment.thread.frames:
        line = lines.get((frame.filename, frame.line))
        if line is None or line.blocks is None:
            return ""
        call = call or line.round_calls
        if any(block.kind in ("for", "while") for block in line.blocks):
            return call
    return ""


def _awaited(moment: JudgedThread) -> tuple[SeenChild, ...]:
    """The threads of its own process that it waits for, as children are seen."""
    own = moment.thread
    threads = awaited_threads(own.frames, own.os_thread_id, moment.look) if own else []
    return tuple(_seen_thread(t, t.os_thread_id, moment.look) for t in threads if t.os_thread_id is not None)


def _seen_thread(thread: ThreadStack, number: int, look: RankLook) -> SeenChild:
    kernel, stack = thread_look(look.process, thread, main=False), _stack(thread, polls=True)
    answers = kernel.wakes if _receives(thread) else None
    return SeenChild(number, kernel.cpu_ticks, stack, (stack,) if stack else (), answers, kernel.own_wakes)


# Calls of Python's library that block in one receive or send; an event loop's poll wakes for other reasons too.
_BLOCKING = {"socket": frozenset({"readinto", "sendfile"}), "ssl": frozenset({"read", "recv_into", "recv", "send"})}


def _receives(thread: ThreadStack | None) -> bool:
    inner = thread.frames[0] if thread and thread.frames else None
    return inner is not None and function(inner.name) in _BLOCKING.get(code_origin(inner.filename).module, ())


def _children(look: RankLook) -> tuple[SeenChild, ...]:
    """Those whose CPU time was read, and those of which only stacks were."""
    seen = {child.pid: child for child in look.process.children} if look.process else {}
    stacks = dict(look.children)
    return tuple(
        SeenChild(
            pid,
            seen[pid].cpu_ticks if pid in seen else None,
            _stack(main_thread(stacks.get(pid, ()), pid), polls=True),
            tuple(stack for thread in stacks.get(pid, ()) if (stack := _stack(thread, polls=True))),
            reaped_ticks=seen[pid].reaped_ticks if pid in seen else 0,
        )
        for pid in dict.fromkeys((*seen, *stacks))
    )


def _stack(thread: ThreadStack | None, *, polls: bool) -> Stack | None:
    if thread is None or not thread.frames:
        return None
    way = _calls(thread.frames, polls=polls)
    return Stack(
        thread.os_thread_id,
        way,
        _job_lines(thread.frames),
        way if polls else _calls(thread.frames, polls=True),
        code_origin(thread.frames[0].filename).origin is Origin.JOB,
    )


def _calls(frames: tuple[CodeFrame, ...], *, polls: bool) -> Calls:
    """The calls that lead to the wait, outermost first, as far as they say something.

    What a wait does inside itself comes and goes: a loader's poll, a helper of threading. So does the line of a job's
    own polling loop, unless it is inside a call that tells what it waits for.
    """
    calls: list[tuple[str, str, int]] = []
    for frame in reversed(frames):
        if code_origin(frame.filename).origin in (Origin.STDLIB, Origin.SYNTHETIC, Origin.LAUNCHER):
            continue
        means = meaning(frame) is not None
        calls.append((frame.filename, function(frame.name), 0 if means else frame.line))
        if means:
            break
    if polls and calls:
        calls[-1] = (*calls[-1][:2], 0)
    return tuple(calls)


def _job_lines(frames: tuple[CodeFrame, ...]) -> Lines:
    return tuple((f.filename, f.line) for f in frames if code_origin(f.filename).origin in (Origin.JOB, Origin.LIBRARY))


def new_operations(
    recorders: tuple[Recorder, ...], ident: str, *, in_main: bool = False, communicates: bool = False
) -> bool | None:
    """Whether the thread issued operations between the recorder's last two looks. None: not told.

    A background thread's operations do not count; where the stack carries no ident, one issuing thread is the loop,
    unless Python started that one, the loop is seen in one that it did not start (`in_main`), and either communicates
    there or the other has never used the default group."""
    newest: dict[str, dict[int, int]] = {}
    threads = issuers(recorders)  # also those of files that broke off: who issues is told by what they still hold
    recorders = tuple(recorder for recorder in recorders if not recorder.cut_short)
    for recorder in recorders:
        ids = [op.record_id for op in recorder.operations]
        newest.setdefault(recorder.backend, {})[recorder.look] = max(ids, default=-1)
    told = None
    for recorder in recorders:
        seen = newest[recorder.backend]
        if len(seen) < 2 or recorder.look != max(seen):
            continue
        earlier = next(one for one in recorders if one.backend == recorder.backend and one.look == sorted(seen)[-2])
        fresh = [op for op in recorder.operations if op.record_id > seen[earlier.look]]
        if _holds_the_active_alone(earlier, recorder):
            if not earlier.status:
                continue
            fresh = _enqueued_since(fresh, earlier, recorder)
        told = told or False
        if ident and threads:
            told = told or any(op.thread_id == ident or is_autograd(op) for op in fresh)
        elif not threads:  # dumps before 2.9 name no thread: only the default group is the loop's for sure
            told = told or any(op.group_description == "default_pg" for op in fresh)
            if fresh and not told:
                return None
        elif len(threads) <= 1:
            used = {op.group_description for one in recorders for op in one.operations}
            beside = in_main and (communicates or "default_pg" not in used)
            told = told or any(not (beside and is_started(op)) for op in fresh)
        elif fresh:
            return told or None
    return told


def _holds_the_active_alone(earlier: Recorder, later: Recorder) -> bool:
    """A dump without what had ended by then (torch's onlyActive): what the next one holds beside may be older."""
    return not any(_has_ended(op) for op in earlier.operations) and any(_has_ended(op) for op in later.operations)


def _has_ended(operation: Operation) -> bool:
    return operation.retired or operation.state == "completed"


def _enqueued_since(operations: list[Operation], earlier: Recorder, later: Recorder) -> list[Operation]:
    """Given operations, oldest first, return as many of each group, the newest, as its counter has gone up."""
    before = {status.pg_id: status.enqueued for status in earlier.status}
    more = {status.pg_id: status.enqueued - before.get(status.pg_id, 0) for status in later.status}
    fresh = []
    for operation in reversed(operations):
        if more.get(operation.pg_id, 0) > 0:
            more[operation.pg_id] -= 1
            fresh.append(operation)
    return fresh[::-1]


def issuers(recorders: tuple[Recorder, ...]) -> frozenset[str]:
    """Idents of the threads that issued operations."""
    return frozenset(op.thread_id for recorder in recorders for op in recorder.operations if op.thread_id is not None)
