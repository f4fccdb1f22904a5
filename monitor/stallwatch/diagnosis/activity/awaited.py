"""The thread that the judged one waits for: a future's result, a join. Where that one stands is the line to look at."""

import msgspec

from stallwatch.diagnosis.activity.blocking_location import Circumstances, kernel_wait, stand
from stallwatch.diagnosis.activity.rank_activity import Activity
from stallwatch.diagnosis.activity.threads import Look, is_service, main_thread, thread_look
from stallwatch.diagnosis.frames.code_origin import Origin, hint, job_frame, place, source_text
from stallwatch.diagnosis.frames.meaning import meaning
from stallwatch.model.evidence import ChildProcess, CodeFrame, SourceLine, ThreadStack
from stallwatch.model.verdict import EndsByItself, Fact
from stallwatch.progress.kinds import Doing, kind_of, of_all

_EXECUTORS = ("concurrent.futures.", "multiprocessing.pool")


def with_awaited_thread(activity: Activity, look: Look, sources: tuple[SourceLine, ...]) -> Activity:
    """Given what a rank does, follow it to the thread of its own process that it waits for, where one alone can be
    meant: the only one of an executor that is at work, else the only one that runs the job's code at all."""
    thread = awaited_thread(activity.stack, activity.os_thread_id, look)
    frame = job_frame(thread.frames, sources) if thread else None
    if thread is None or frame is None:
        return activity
    detail = stand(thread.frames, Circumstances(wait=None, on_cpu=thread.active, gpu=False)).detail
    fact = Fact(
        f"it waits for its thread {thread.name or 'without a name'}, which is at {frame.file}:{frame.line} in "
        f"{frame.function}",
        "py-spy",
    )
    return msgspec.structs.replace(
        activity,
        awaited_frame=frame,
        awaited_detail=detail,
        awaited_stack=thread.frames,
        why=(*activity.why, fact),
    )


def awaited_thread(stack: tuple[CodeFrame, ...], own_id: int | None, look: Look) -> ThreadStack | None:
    """The one thread for which a stack waits by a join or a future's result; None where several can be meant."""
    if not _waits_for_a_thread(stack):
        return None
    others = _others(own_id, look)
    pooled = [thread for thread in others if _is_pooled(thread)]
    return (pooled or others)[0] if len(pooled or others) == 1 else None


def kind_of_helpers(own_id: int | None, look: Look, sources: tuple[SourceLine, ...]) -> EndsByItself | None:
    """Given a thread that waits for a lock, a queue or another thread, return what the job's other threads do that may
    end by itself: who gives back, or delivers, may be one of them. What sleeps or serves others delivers nothing."""
    kinds = [_kind(thread, look, sources) for thread in _others(own_id, look)]
    found = [kind for kind in kinds if kind not in (None, "sleep", "timeout", "request")]
    return of_all(found)


def _kind(thread: ThreadStack, look: Look, sources: tuple[SourceLine, ...]) -> EndsByItself | None:
    kernel = thread_look(look.process, thread, main=False)
    wait = kernel_wait(kernel.wchan, kernel.state)
    around = Circumstances(wait, thread.active, gpu=False, hint=hint(source_text(sources, thread.frames[0])))
    return kind_of(Doing(stand(thread.frames, around).where, sleeps=wait == "sleep", on_cpu=thread.active))


def _others(own_id: int | None, look: Look) -> list[ThreadStack]:
    return [t for t in look.threads if t.os_thread_id != own_id and not is_service(t) and _runs_the_job(t)]


def _waits_for_a_thread(stack: tuple[CodeFrame, ...]) -> bool:
    """A join or a future's result between the innermost frame and the job's own code."""
    for frame in stack:
        if place(frame.filename).origin is Origin.JOB:
            return False
        found = meaning(frame)
        if found is not None and found.role == "join":
            return True
    return False


def _runs_the_job(thread: ThreadStack) -> bool:
    return any(place(frame.filename).origin is Origin.JOB for frame in thread.frames)


def _is_pooled(thread: ThreadStack) -> bool:
    return any(place(frame.filename).module.startswith(_EXECUTORS) for frame in thread.frames)


# Descent into the child processes that a rank waits for: loader workers, compilers, pools.


def with_child(activity: Activity, look: Look, sources: tuple[SourceLine, ...]) -> Activity:
    """Descend: the worker that is at work on something, not one that waits for the next index."""
    for pid, threads in look.children:
        thread = main_thread(threads, pid)
        own = _own_frames(thread.frames) if thread else ()
        # A worker that has nothing to do waits for an index or a task straight in its library's loop.
        if thread is None or not any(place(frame.filename).origin is Origin.JOB for frame in own):
            continue
        around = Circumstances(
            wait=kernel_wait(child.wchan, child.state) if (child := _child(look, pid)) else None,
            on_cpu=thread.active,
            gpu=False,
            hint=hint(source_text(sources, own[0])) if own else None,
        )
        standing = stand(own, around)
        frame = job_frame(own, sources)
        fact = Fact(f"its child process {pid} is at {frame.file}:{frame.line}" if frame else f"child {pid}", "py-spy")
        return msgspec.structs.replace(
            activity, child_pid=pid, child_frame=frame, child_detail=standing.detail, why=(*activity.why, fact)
        )
    return activity


def _child(look: Look, pid: int) -> ChildProcess | None:
    return next((child for child in look.process.children if child.pid == pid), None) if look.process else None


def _own_frames(frames: tuple[CodeFrame, ...]) -> tuple[CodeFrame, ...]:
    """What the child was asked to do: beneath that lie the loader, and after a fork the parent's own past."""
    for index, frame in enumerate(frames):
        module = place(frame.filename).module
        if module.startswith("torch.utils.data.") or (module == "multiprocessing.process" and "run" in frame.name):
            return frames[:index]
    return frames
