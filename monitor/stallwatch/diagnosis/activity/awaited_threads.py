"""The threads of its own process that a rank waits for (a future's result, a join, a lock), and what these do: where
such a thread stands is the line to look at."""

from msgspec.structs import replace

from stallwatch.diagnosis.activity.blocking_location import Circumstances, locate
from stallwatch.diagnosis.activity.kernel_waits import kernel_wait
from stallwatch.diagnosis.activity.rank_activity import HelperThread, RankActivity
from stallwatch.diagnosis.activity.threads import RankLook, is_service, thread_look
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, hint, job_frame, source_text
from stallwatch.diagnosis.frames.meaning import meaning
from stallwatch.model.evidence import CodeFrame, SourceLine, ThreadStack
from stallwatch.model.verdict import EndsByItself, Fact
from stallwatch.progress.kinds import Doing, kind_of, of_all

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
