"""What a rank does where it stands, as far as it may end by itself: a wait with a time-out, an import, a child, a
server that has nothing to do. What follows from that is decided in `progress.kinds`."""

from collections.abc import Iterable, Sequence

from stallwatch.diagnosis.activity.awaited_threads import kind_of_helpers
from stallwatch.diagnosis.activity.blocking_location import ENDED_BY_PROCESSES, BlockingLocation
from stallwatch.diagnosis.activity.kernel_waits import KernelWait, kernel_wait
from stallwatch.diagnosis.activity.observed import JudgedThread
from stallwatch.diagnosis.activity.threads import ended_meanwhile
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, function, hint, is_bounded, source_text
from stallwatch.diagnosis.frames.meaning import meaning
from stallwatch.model.evidence import CodeFrame, RankEvidence, ThreadStack
from stallwatch.progress.cpu_time import CLOCK_TICKS_PER_SECOND
from stallwatch.progress.kinds import Doing

# Where programs wait for requests, messages or a person, in the thread that is judged or beside it.
_EVENT_LOOPS = ("asyncio.", "zmq.", "tornado.ioloop", "grpc.")
# Of a module whose other functions end a server, and wait for its threads, or are inside of a request.
_ITS_LOOPS = {"socketserver": frozenset(("serve_forever", "handle_request"))}
_SERVERS = (
    "uvicorn.", "http.server", "socketserver", "aiohttp.web", "tornado.", "ipykernel.", "grpc._server", "hypercorn.",
    "gunicorn.", "zmq.",
)  # fmt: skip


# Polls that are runnable at two looks by chance take more; a core that twenty busy processes share gives more.
_STARVED_SHARE = 0.02
_SLEEPS = ("sleep", "signal")  # who sends the signal may be at work until then, as may what a pause is for
_RUNS = frozenset(("busy_loop", "user_code", "gil", "unknown"))
STARVES = "is ready to run and gets next to no processor time"


def doing(now: JudgedThread, rank: RankEvidence, *, again: bool) -> Doing:
    """Given the thread that is judged, return what it does. `again`: what it waits in ends now and then."""
    standing, sources = now.standing, rank.sources
    frames = now.thread.frames if now.thread else ()
    own = next(
        (place for place, frame in enumerate(frames) if code_origin(frame.filename).origin is Origin.JOB), len(frames)
    )
    wait = kernel_wait(now.kernel.wchan, now.kernel.state, now.kernel.waits_on)
    said = hint(source_text(sources, frames[0])) if frames else None
    on_cpu = bool(now.thread and now.thread.active) or (not frames and now.kernel.state == "R")
    roles = {found.role for frame in frames[: _call_made(frames)] if (found := meaning(frame))}
    return Doing(
        where="busy_loop" if standing.gpu_guessed else standing.where,  # it may as well compute, which ends
        child="child" in roles
        or (standing.where == "user_code" and standing.waits_for_children)
        or (_is_ended_by_processes(standing) and _has_a_child_at_work(now)),
        tracker="tracker" in roles,
        imports=any(frame.filename.startswith("<frozen importlib") for frame in frames[:own]),
        sleeps=wait in _SLEEPS or (said in _SLEEPS and not on_cpu),
        on_cpu=on_cpu,
        bounded=again or said == "database" or _may_be_bounded(frames[: own + 1], rank, now.kernel.endless),
        serves=not on_cpu and (_is_event_loop(frames[:own]) or ("queue" in roles and _serves(now.look.threads))),
        helper=kind_of_helpers(now.thread, now.look, sources)
        if now.thread and standing.where == "lock" and wait in ("futex", None)
        else None,
    )


# What a process does in these that will give nothing back by itself: a worker without work, another that waits.
_AT_REST: frozenset[KernelWait | None] = frozenset({
    "futex", "semaphore", "file_lock", "poll", "pipe", "pipe_write", "terminal", "child", "signal", "stopped", None,
})  # fmt: skip


def _is_ended_by_processes(standing: BlockingLocation) -> bool:
    return standing.shared_lock == "processes" or standing.detail in ENDED_BY_PROCESSES


def _has_a_child_at_work(now: JudgedThread) -> bool:
    """Whether a process of the rank's own computes, sleeps or reads, and may so give back, or come to, what is shared
    with it: nobody tells who holds a semaphore."""
    children = now.look.process.children if now.look.process else ()
    return any(
        child.state in ("R", "D") or kernel_wait(child.wchan, child.state, child.waits_on) not in _AT_REST
        for child in children
    )


# What clients of services call themselves, between their own frames and the wait: it is nobody's training.
_BETWEEN = ("tenacity", "backoff", "retry", "retrying", "wrapt", "decorator")


def _call_made(frames: Sequence[CodeFrame]) -> int:
    """How many frames the call has that the innermost code of the job makes, an installed trainer's too. What called
    that code is none of what it does: mp.spawn, the agent of a sweep."""
    for place, frame in enumerate(frames):
        found = code_origin(frame.filename)
        if found.module == "multiprocessing.process" and function(frame.name) == "_bootstrap":
            return place
        is_own = found.origin is Origin.LIBRARY and found.module.partition(".")[0] not in _BETWEEN
        if (is_own or found.origin is Origin.JOB) and meaning(frame) is None:
            return place
    return len(frames)


def without_a_turn(before: JudgedThread, now: JudgedThread, standing: BlockingLocation) -> BlockingLocation:
    """Where a thread stands that is runnable at both looks and ran for next to nothing between them: a limit of
    processor time, or a neighbour, keeps it from its line; that it keeps the GIL meanwhile is none of the line's."""
    states = {before.kernel.state, now.kernel.state}
    if before is now or states != {"R"} or standing.where not in _RUNS or standing.in_collective:
        return standing
    at_ns = [moment.look.process.at_ns if moment.look.process else None for moment in (before, now)]
    ticks = before.kernel.cpu_ticks, now.kernel.cpu_ticks
    if at_ns[0] is None or at_ns[1] is None or ticks[0] is None or ticks[1] is None:
        return standing
    seconds, ran = (at_ns[1] - at_ns[0]) / 1e9, (ticks[1] - ticks[0]) / CLOCK_TICKS_PER_SECOND
    if seconds <= 0 or ran > _STARVED_SHARE * seconds:
        return standing
    return standing._replace(where="busy_loop", detail=STARVES, gpu_guessed=False)


IN_A_TEAM = "computes together with threads of native code"
# Main threads that wait in gloo wake a few times in all; those at barriers of parallel loops, 50 times a second where
# eight ranks' teams shared two cores.
_TEAM_EVERY_SECOND = 10
# Threads of communication, which wake for reasons of their own.
_COMMUNICATES = ("gloo", "pt_gloo", "pt_nccl", "NCCL", "cuda")


def in_a_team(before: JudgedThread, now: JudgedThread, standing: BlockingLocation, *, gpu: bool) -> BlockingLocation:
    """Where a thread stands that waits in native code at both looks, and whose waits end again and again, as do those
    of native threads of its process: the barriers of parallel loops (OpenMP's, a BLAS's, rayon's), no wait for another
    rank. Where a GPU is used, threads of drivers and of NCCL look so."""
    if before is now or gpu or standing.in_collective is not None:
        return standing
    first, last = before.look.process, now.look.process
    if first is None or last is None or first.at_ns is None or last.at_ns is None:
        return standing
    own = _woken(before.kernel.wakes, before.kernel.own_wakes, now.kernel.wakes)
    if own < _TEAM_EVERY_SECOND * max(1.0, (last.at_ns - first.at_ns) / 1e9):
        return standing
    of_python = {thread.os_thread_id for thread in now.look.threads}
    was = {thread.tid: thread for thread in first.threads}
    for thread in last.threads:
        if thread.tid in of_python or thread.tid not in was or thread.name.startswith(_COMMUNICATES):
            continue
        if _woken(was[thread.tid].wakes, was[thread.tid].own_wakes, thread.wakes) >= own / 2:
            return standing._replace(where="busy_loop", detail=IN_A_TEAM, in_collective=False, collective=None)
    return standing


def _woken(before: int | None, own: int, now: int | None) -> int:
    return 0 if before is None or now is None else max(0, now - before - own)


def begins_anew(before: JudgedThread, now: JudgedThread, ident: str) -> bool:
    """What this thread waits in, at the same lines at both looks, ended meanwhile and began anew: by its hook its
    Python frames changed; where no hook counts them, it waits for a lock, and went to sleep there again and again."""
    first, last = before.look.heartbeat, now.look.heartbeat
    if first is None or last is None or None in (first.frame_changes, last.frame_changes):
        return _is_given_its_lock(before, now)
    return first.frame_changes != last.frame_changes and ident == str(last.training_ident)


def _is_given_its_lock(before: JudgedThread, now: JudgedThread) -> bool:
    """A lock that others hold for a while each, in turn: by the kernel's count of its sleeps (21 in 19 s of who waits
    for three that have it three seconds each; none in 50 s of who waits for ever)."""
    at_ns = [moment.look.process.at_ns if moment.look.process else None for moment in (before, now)]
    waits = {kernel_wait(moment.kernel.wchan, moment.kernel.state) for moment in (before, now)}
    at_same_lines = before.thread and now.thread and before.thread.frames == now.thread.frames
    if before is now or not at_same_lines or waits != {"futex"} or at_ns[0] is None or at_ns[1] is None:
        return False
    if False in (before.kernel.endless, now.kernel.endless):  # it is its own time-out that ends the wait each time
        return False
    return ended_meanwhile(before.kernel, now.kernel, (at_ns[1] - at_ns[0]) / 1e9)


def _may_be_bounded(frames: Sequence[CodeFrame], rank: RankEvidence, endless: bool | None) -> bool:
    """A line says that the wait has a time-out. Or lines were asked for and could not be read, as on a crowded node:
    waits with a time-out were told as certain there. The kernel knows better than a library's line that is the same
    for both: multiprocessing's `acquire(True, timeout)`, with a timeout that is None. The job's own line may have
    another thread keep the time (`asyncio.wait_for`, a client's)."""
    texts = [source_text(rank.sources, frame) for frame in frames]
    if endless:
        return any(is_bounded(text) for frame, text in zip(frames, texts, strict=True) if _is_of_the_job(frame))
    unread = bool(rank.attempts) and not any(tried.what == "sources" and tried.answered for tried in rank.attempts)
    return any(is_bounded(text) for text in texts) or (unread and bool(texts) and not any(texts))


def _is_of_the_job(frame: CodeFrame) -> bool:
    return code_origin(frame.filename).origin is Origin.JOB


def _is_event_loop(frames: Sequence[CodeFrame]) -> bool:
    """Of a module of servers, the innermost function tells whether it waits for the next request."""
    for frame in frames:
        module = code_origin(frame.filename).module
        if module.startswith(_EVENT_LOOPS):
            return True
        if module in _ITS_LOOPS:
            return function(frame.name) in _ITS_LOOPS[module]
    return False


def _serves(threads: Iterable[ThreadStack]) -> bool:
    return any(code_origin(frame.filename).module.startswith(_SERVERS) for thread in threads for frame in thread.frames)
