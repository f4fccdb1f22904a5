"""What a rank does as nodes send it to each other: one flat struct, whose fields belong to the format of a node summary
(`model.summary.SCHEMA_VERSION`). What they mean is said where the values are, in `rank_activity.py`."""

import msgspec

from stallwatch.diagnosis.activity.rank_activity import (
    CommunicationCall,
    Exceptions,
    HelperChild,
    Helpers,
    HelperThread,
    ProcessState,
    RaisedException,
    RankActivity,
    RankEnd,
    RankProgress,
)
from stallwatch.diagnosis.activity.thread_place import Place, SharedLock
from stallwatch.model.evidence import CodeFrame, SourceBlock
from stallwatch.model.hook_report import Handled, NamedCall
from stallwatch.model.verdict import EndsByItself, Fact, Frame, Where


class FlatActivity(msgspec.Struct, frozen=True):
    """A RankActivity without its parts. A field that is missing has its default, as in summaries of older nodes."""

    rank: int
    host: str | None = None
    pid: int | None = None
    where: Where = "unknown"
    frame: Frame | None = None
    detail: str = ""
    thread: str = ""
    os_thread_id: int | None = None
    stack: tuple[CodeFrame, ...] = ()
    in_collective: bool | None = False
    collective: str | None = None
    gpu_sync: bool = False
    gpu_guessed: bool = False
    in_store_or_init: bool = False
    in_teardown: bool = False
    exception: str | None = None
    exception_frame: Frame | None = None
    exception_is_consequence: bool = False
    exception_swallowed: bool = False
    handled: Handled | None = None
    logged_beside: str | None = None
    named_call: NamedCall | None = None
    call_members: tuple[int, ...] | None = None
    call_group_name: str | None = None
    blocks: tuple[tuple[str, str, SourceBlock], ...] | None = None
    ends_by_itself: EndsByItself | None = None
    awaited_frame: Frame | None = None
    awaited_detail: str = ""
    awaited_stack: tuple[CodeFrame, ...] = ()
    beside_frame: Frame | None = None
    beside_detail: str = ""
    polls: str = ""
    moving: bool | None = None
    io_known: bool = False
    cpu_share: float | None = None
    waits_for_children: bool = False
    child_pids: tuple[int, ...] = ()
    child_pid: int | None = None
    child_frame: Frame | None = None
    child_detail: str = ""
    child_where: Where = "unknown"
    child_in_collective: bool = False
    stopped_child: int | None = None
    uses_gpu: bool = False
    stopped: bool = False
    frozen: bool = False
    tracer_pid: int | None = None
    uninterruptible: bool = False
    gone: bool = False
    exit_code: int | None = None
    exit_signal: int | None = None
    out_of_memory: bool | None = None
    joined: bool | None = None
    phase: str = ""
    waits_on: str = ""
    shared_lock: SharedLock | None = None
    lock_holder_pid: int | None = None
    lock_is_inherited: bool = False
    why: tuple[Fact, ...] = ()


_NOBODY = HelperThread(None)
_NO_CHILD = HelperChild(0, None)
_NOTHING = RaisedException("")


def flatten(activity: RankActivity) -> FlatActivity:
    """Given what a rank does, return it as it is sent."""
    place, helpers, exceptions = activity.place, activity.helpers, activity.exceptions
    awaited, beside = helpers.awaited or _NOBODY, helpers.beside or _NOBODY
    child, raised = helpers.child or _NO_CHILD, exceptions.raised or _NOTHING
    process, end, progress, call = activity.process, activity.end, activity.progress, activity.call
    return FlatActivity(
        rank=activity.rank,
        host=activity.host,
        pid=activity.pid,
        where=place.where,
        frame=place.frame,
        detail=place.detail,
        thread=place.thread,
        os_thread_id=place.os_thread_id,
        stack=place.stack,
        in_collective=call.in_collective,
        collective=call.collective,
        gpu_sync=place.gpu_sync,
        gpu_guessed=place.gpu_guessed,
        in_store_or_init=place.in_store_or_init,
        in_teardown=place.in_teardown,
        exception=exceptions.text,
        exception_frame=raised.frame,
        exception_is_consequence=raised.is_consequence,
        exception_swallowed=raised.swallowed,
        handled=exceptions.handled,
        logged_beside=exceptions.logged_beside,
        named_call=call.named_call,
        call_members=call.members,
        call_group_name=call.group_name,
        blocks=place.blocks,
        ends_by_itself=progress.ends_by_itself,
        awaited_frame=awaited.frame,
        awaited_detail=awaited.detail,
        awaited_stack=awaited.stack,
        beside_frame=beside.frame,
        beside_detail=beside.detail,
        polls=place.polls,
        moving=progress.moving,
        io_known=progress.io_known,
        cpu_share=progress.cpu_share,
        waits_for_children=helpers.waits_for_children,
        child_pids=helpers.child_pids,
        child_pid=helpers.child.pid if helpers.child else None,
        child_frame=child.frame,
        child_detail=child.detail,
        child_where=child.where,
        child_in_collective=child.in_collective,
        stopped_child=helpers.stopped_child,
        uses_gpu=process.uses_gpu,
        stopped=process.stopped,
        frozen=process.frozen,
        tracer_pid=process.tracer_pid,
        uninterruptible=process.uninterruptible,
        gone=end.gone,
        exit_code=end.exit_code,
        exit_signal=end.exit_signal,
        out_of_memory=end.out_of_memory,
        joined=process.joined,
        phase=process.phase,
        waits_on=place.waits_on,
        shared_lock=place.shared_lock,
        lock_holder_pid=place.lock_holder_pid,
        lock_is_inherited=place.lock_is_inherited,
        why=activity.why,
    )


def unflatten(flat: FlatActivity) -> RankActivity:
    """Given what another node sent, return its parts. `gpu_sync` and `in_store_or_init` follow from `where`."""
    return RankActivity(
        rank=flat.rank,
        host=flat.host,
        pid=flat.pid,
        place=Place(
            where=flat.where,
            detail=flat.detail,
            frame=flat.frame,
            stack=flat.stack,
            thread=flat.thread,
            os_thread_id=flat.os_thread_id,
            in_teardown=flat.in_teardown,
            gpu_guessed=flat.gpu_guessed,
            blocks=flat.blocks,
            polls=flat.polls,
            waits_on=flat.waits_on,
            shared_lock=flat.shared_lock,
            lock_holder_pid=flat.lock_holder_pid,
            lock_is_inherited=flat.lock_is_inherited,
        ),
        call=CommunicationCall(
            flat.in_collective, flat.collective, flat.named_call, flat.call_members, flat.call_group_name
        ),
        progress=RankProgress(flat.moving, flat.cpu_share, flat.io_known, flat.ends_by_itself),
        helpers=Helpers(
            awaited=_helper(flat.awaited_frame, flat.awaited_detail, flat.awaited_stack),
            beside=_helper(flat.beside_frame, flat.beside_detail, ()),
            waits_for_children=flat.waits_for_children,
            child_pids=flat.child_pids,
            child=None
            if flat.child_pid is None
            else HelperChild(
                flat.child_pid, flat.child_frame, flat.child_detail, flat.child_where, flat.child_in_collective
            ),
            stopped_child=flat.stopped_child,
        ),
        exceptions=Exceptions(_raised(flat), flat.handled, flat.logged_beside),
        process=ProcessState(
            stopped=flat.stopped,
            frozen=flat.frozen,
            tracer_pid=flat.tracer_pid,
            uninterruptible=flat.uninterruptible,
            uses_gpu=flat.uses_gpu,
            joined=flat.joined,
            phase=flat.phase,
        ),
        end=RankEnd(flat.gone, flat.exit_code, flat.exit_signal, flat.out_of_memory),
        why=flat.why,
    )


def _helper(frame: Frame | None, detail: str, stack: tuple[CodeFrame, ...]) -> HelperThread | None:
    """None where nothing is told of it: a summary without places still tells what it does."""
    return HelperThread(frame, detail, stack) if frame or detail or stack else None


def _raised(flat: FlatActivity) -> RaisedException | None:
    if flat.exception is None:
        return None
    return RaisedException(
        flat.exception, flat.exception_frame, flat.exception_is_consequence, flat.exception_swallowed
    )
