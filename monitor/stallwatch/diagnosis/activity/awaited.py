"""The thread that the judged one waits for: a future's result, a join. Where that one stands is the line to look at."""

import msgspec

from stallwatch.diagnosis.activity.looks import Look
from stallwatch.diagnosis.activity.result import Activity
from stallwatch.diagnosis.activity.source import job_frame
from stallwatch.diagnosis.activity.standing import Circumstances, stand
from stallwatch.diagnosis.activity.threads import is_service
from stallwatch.diagnosis.frames import Origin, place
from stallwatch.diagnosis.frames_meaning import meaning
from stallwatch.model.evidence import CodeFrame, SourceLine, ThreadStack
from stallwatch.model.verdict import Fact

_EXECUTORS = ("concurrent.futures.", "multiprocessing.pool")


def with_awaited_thread(activity: Activity, look: Look, sources: tuple[SourceLine, ...]) -> Activity:
    """Given what a rank does, follow it to the thread of its own process that it waits for, where one alone can be
    meant: the only one of an executor that is at work, else the only one that runs the job's code at all."""
    if not _waits_for_a_thread(activity.stack):
        return activity
    others = [
        thread
        for thread in look.threads
        if thread.os_thread_id != activity.os_thread_id and not is_service(thread) and _runs_the_job(thread)
    ]
    pooled = [thread for thread in others if _is_pooled(thread)]
    if len(pooled or others) != 1:
        return activity
    (thread,) = pooled or others
    frame = job_frame(thread.frames, sources)
    if frame is None:
        return activity
    detail = stand(thread.frames, Circumstances(wait=None, on_cpu=thread.active, gpu=False)).detail
    fact = Fact(
        f"it waits for its thread {thread.name or 'without a name'}, which is at {frame.file}:{frame.line} in "
        f"{frame.function}",
        "py-spy",
    )
    return msgspec.structs.replace(activity, awaited_frame=frame, awaited_detail=detail, why=(*activity.why, fact))


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
