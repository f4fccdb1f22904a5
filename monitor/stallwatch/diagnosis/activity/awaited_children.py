"""Which child processes a rank waits for (that of its system call, workers of its data loader, compilers, pools), and
what these do. What others of them do (a tracker's service, a collector of metrics) is their own."""

from msgspec.structs import replace

from stallwatch.diagnosis.activity.blocking_location import BlockingLocation, Circumstances, locate
from stallwatch.diagnosis.activity.kernel_waits import kernel_wait, stored_at
from stallwatch.diagnosis.activity.rank_activity import HelperChild, RankActivity
from stallwatch.diagnosis.activity.threads import RankLook, ThreadLook, main_thread
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, function, hint, job_frame, source_text
from stallwatch.model.evidence import ChildProcess, CodeFrame, SourceLine, ThreadStack
from stallwatch.model.verdict import Fact, Where

_LOADS = "torch.utils.data._utils.worker"


def only_awaited(look: RankLook, kernel: ThreadLook, where: Where) -> RankLook:
    """Given a look and the judged thread in it, return the look with none but the children that this one may wait for,
    and those that these have started; as it is where nothing tells which they are."""
    if look.process is None:
        return look
    children = look.process.children
    asked = {child.pid for child in children if kernel.awaited_child == (child.namespace_pid or child.pid)}
    if where == "dataloader":
        workers = {pid for pid, threads in look.children if any(_is_worker(thread) for thread in threads)}
        # Of a worker without a stack nothing tells that it is one.
        dark = {child.pid for child in children} - {pid for pid, threads in look.children if threads}
        asked = workers | dark if workers else set()
    kept = _with_descendants(asked, children)
    if not kept:
        return look
    return look._replace(
        children=tuple((pid, threads) for pid, threads in look.children if pid in kept),
        process=replace(look.process, children=tuple(child for child in children if child.pid in kept)),
    )


def _is_worker(thread: ThreadStack) -> bool:
    return any(code_origin(frame.filename).module.startswith(_LOADS) for frame in thread.frames)


def _with_descendants(pids: set[int], children: tuple[ChildProcess, ...]) -> set[int]:
    """Nearest first, as children are listed."""
    kept = set(pids)
    for child in children:
        if child.parent_pid in kept:
            kept.add(child.pid)
    return kept


def with_child(activity: RankActivity, look: RankLook, sources: tuple[SourceLine, ...]) -> RankActivity:
    """Descend: the worker that is at work on something, not one that waits for the next index. Of the processes of a
    program that the rank runs (an evaluation by torchrun), one that is in a collective waits for another of them."""
    found = [seen for pid, threads in look.children if (seen := _at_work(pid, threads, look, sources)) is not None]
    elsewhere = [seen for seen in found if not seen.in_collective and activity.place.where != "dataloader"]
    if not found:
        return activity
    child = (elsewhere or found)[0]
    at, frame = _child(look, child.pid), child.frame
    fact = Fact(
        f"its child process {child.pid} is at {frame.file}:{frame.line}" if frame else f"child {child.pid}", "py-spy"
    )
    on = stored_at(at.wchan, at.state, at.waits_on) if at else ""
    place = replace(activity.place, waits_on=on) if on else activity.place
    helpers = replace(activity.helpers, child=child)
    return replace(activity, place=place, helpers=helpers, why=(*activity.why, fact))


def _at_work(
    pid: int, threads: tuple[ThreadStack, ...], look: RankLook, sources: tuple[SourceLine, ...]
) -> HelperChild | None:
    thread = main_thread(threads, pid)
    own = _own_frames(thread.frames) if thread else ()
    if thread is None or not _is_at_work(own):
        return None
    around = Circumstances(
        wait=kernel_wait(child.wchan, child.state, child.waits_on) if (child := _child(look, pid)) else None,
        on_cpu=thread.active,
        gpu=False,
        hint=hint(source_text(sources, own[0])) if own else None,
    )
    standing = _before_its_program(own, look, around) or locate(own, around)
    inside = bool(standing.in_collective)
    return HelperChild(pid, job_frame(own, sources), standing.detail, standing.where, in_collective=inside)


_FORKS_A_PROGRAM = ("subprocess", "_execute_child")


def _before_its_program(own: tuple[CodeFrame, ...], look: RankLook, around: Circumstances) -> BlockingLocation | None:
    """Where a child stands that `subprocess` has forked and that has not come to its program: it has the stack of its
    parent until then, and runs `preexec_fn` above it. None for any other."""
    names = [(code_origin(frame.filename).module, function(frame.name)) for frame in own]
    if _FORKS_A_PROGRAM not in names:
        return None
    depth = names.index(_FORKS_A_PROGRAM)
    callers = own[depth + 1 :]
    if not any(thread.frames[-len(callers) :] == callers for thread in look.threads if callers):
        return None
    standing = locate(own[:depth], around if depth else around._replace(hint=None))
    return standing._replace(detail=f"{standing.detail} before its program, in `preexec_fn`,", waits_for_children=False)


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
