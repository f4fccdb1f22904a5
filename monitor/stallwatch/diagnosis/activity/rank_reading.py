"""The answer to "what does this rank do", from its stacks, its process looks, its heartbeat and its log."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from stallwatch.diagnosis.activity.awaited_children import only_awaited, with_child, with_stopped_child
from stallwatch.diagnosis.activity.awaited_threads import with_awaited_thread, with_thread_beside
from stallwatch.diagnosis.activity.blocking_location import (
    BlockingLocation,
    Circumstances,
    locate,
    locate_without_stack,
)
from stallwatch.diagnosis.activity.doing import begins_anew, doing, in_a_team, without_a_turn
from stallwatch.diagnosis.activity.kernel_waits import is_of_flock, kernel_wait
from stallwatch.diagnosis.activity.observed import JudgedThread, observed
from stallwatch.diagnosis.activity.rank_activity import (
    CommunicationCall,
    Helpers,
    ProcessState,
    RaisedException,
    RankActivity,
    RankEnd,
    RankProgress,
    exception_of_nobody,
    last_exception,
    logged_end,
    polls_a_child,
    with_scene,
)
from stallwatch.diagnosis.activity.thread_place import Place
from stallwatch.diagnosis.activity.threads import (
    RankLook,
    blocking_thread,
    has_joined,
    ident_of,
    is_python_thread,
    is_service,
    looks,
    main_thread,
    manages_processes,
    other_program,
    reads_no_result,
    thread_look,
    uses_gpu,
)
from stallwatch.diagnosis.activity.training_threads import Entry, thread_of
from stallwatch.diagnosis.frames.code_origin import (
    Origin,
    code_origin,
    hint,
    job_frame,
    job_frame_index,
    source_text,
)
from stallwatch.diagnosis.frames.meaning import A_POOL, NO_RESULT
from stallwatch.diagnosis.logs.consequence import is_consequence
from stallwatch.diagnosis.logs.log_reading import shares_its_log
from stallwatch.diagnosis.recorder.new_operations import issuers, new_operations
from stallwatch.model.evidence import CodeFrame, ProcessLook, RankEvidence, SourceLine, ThreadStack
from stallwatch.model.process import ENDED, STOPPED, is_frozen
from stallwatch.model.verdict import Fact, Frame
from stallwatch.progress.kinds import kind_of
from stallwatch.progress.progress import Progress, compare
from stallwatch.progress.ticks import pulse_stands

T = TypeVar("T")

# What the thread does is then the story, and the GIL a detail of it.
_TELLS_MORE = frozenset({"checkpoint", "dataloader", "compile", "store", "init", "collective", "teardown"})


def _with_gil(now: JudgedThread, seen: tuple[RankLook, ...]) -> tuple[BlockingLocation, tuple[Fact, ...]]:
    """Given the judged thread at the last look, and all looks, return where it stands, and why it is held to keep the
    GIL where it is: one that owns it while it sleeps stops every other Python thread, the hook's pulse among them."""
    if program := other_program(now.look):
        return BlockingLocation("user_code", f"is another program, {program}: it has replaced itself (exec)"), ()
    beats = [(look.process.at_ns if look.process else None, look.heartbeat) for look in seen if look.heartbeat]
    still, alive = False, False
    if beats:
        (_, first), (at_ns, last) = beats[0], beats[-1]
        alive = last.pulse_count != first.pulse_count
        still = not alive and at_ns is not None and pulse_stands(last.pulse_ns, at_ns, last.dump_started_ns)
    state = now.kernel.state
    if state in STOPPED:
        return now.standing, ()  # a process that is stopped gives nothing back: the stop is the story
    owner = now.thread if now.thread and now.thread.owns_gil else None
    asleep = owner is not None and not owner.active
    frozen = owner is not None and still and owner.active and now.standing.where in ("busy_loop", "gpu_sync")
    if (asleep and not alive) or frozen:
        fact = Fact("the thread owns the GIL and does not give it back", "py-spy")
        # A page of a mapped file (a memmap data set) is read in the midst of a call that knows nothing of it.
        if now.standing.where in _TELLS_MORE or kernel_wait(now.kernel.wchan, state) == "file":
            return now.standing._replace(detail=f"{now.standing.detail} and holds the GIL meanwhile"), (fact,)
        detail = (
            "computes in a call that keeps the GIL" if frozen else "holds the GIL in a call that does not give it back"
        )
        return now.standing._replace(where="gil", detail=detail, in_collective=False, gpu_guessed=False), (fact,)
    if now.thread is None and still and state in ("R", "S"):
        fact = Fact("the hook's own thread stands still though the process is not stopped", "heartbeat")
        return BlockingLocation("gil", "holds the GIL: no Python thread of it runs"), (fact,)
    return now.standing, ()


def read_activity(rank: RankEvidence, trains_from: Entry | None = None) -> RankActivity:
    """Given everything known of one rank, say what it does; `trains_from`: where the thread begins that trains, as far
    as all ranks together tell it. Never raise; order of threads and looks is irrelevant."""
    seen = looks(rank)
    gpu = uses_gpu(rank)
    moments = [_moment(rank, look, gpu, trains_from) for look in seen]
    with_stack = [moment for moment in moments if moment.thread and moment.thread.frames]
    raised = _raised(rank)
    if not moments:
        blank = RankActivity(rank=rank.rank, host=rank.host, pid=rank.pid)
        return _with_exception(_with_logged_end(blank, rank), raised)
    chosen = with_stack or moments
    # The last two looks: a rank that was still starting, or worked on, at an older one may stand since.
    before, now = chosen[-2:][0], chosen[-1]
    standing, gil_facts = _with_gil(now, seen)
    standing = in_a_team(before, now, without_a_turn(before, now, standing), gpu=gpu)
    if standing.detail == A_POOL and reads_no_result(now.look.threads):
        standing = standing._replace(detail=NO_RESULT, waits_for_children=False)
    polls = polls_a_child(now.thread.frames if now.thread else (), standing.detail, rank.sources)
    now = now._replace(standing=standing._replace(waits_for_children=standing.waits_for_children or polls))
    ident = ident_of(now.thread) if now.thread else ""
    moved = _moved(rank, chosen[:-2], before, now, ident) if len(chosen) > 1 else Progress("unknown")
    process = next((look.process for look in reversed(seen) if look.process), None)
    gone = _is_gone(process, seen)
    ends_by_itself = None
    if not gone and not other_program(now.look):
        ends_by_itself = kind_of(doing(now, rank, again=begins_anew(before, now, ident)))
    activity = RankActivity(
        rank=rank.rank,
        host=rank.host,
        pid=rank.pid if rank.pid is not None else (process.pid if process else None),
        place=_place(now, rank),
        call=CommunicationCall(False if gone else now.standing.in_collective, now.standing.collective),
        progress=RankProgress(
            moving=moved.moves,
            cpu_share=moved.cpu_share,
            io_known=all(look.process and look.process.read_bytes is not None for look in (before.look, now.look)),
            ends_by_itself=ends_by_itself,
        ),
        helpers=Helpers(
            waits_for_children=now.standing.waits_for_children,
            child_pids=tuple(sorted(child.pid for child in process.children)) if process else (),
        ),
        process=_process_state(rank, now, process, seen, moved),
        end=_end(rank, gone=gone),
        why=_why(now) + gil_facts + moved.because,
    )
    if now.standing.waits_for_children or now.standing.where == "dataloader":
        activity = with_child(activity, only_awaited(now.look, now.kernel, now.standing.where), rank.sources)
        works = "process_queue" in now.standing.roles and _are_at_work(activity.helpers, process)
        works = works or now.standing.detail == A_POOL  # of threads, or of processes that were not seen at work
        if activity.progress.ends_by_itself is None and works:
            activity = replace(activity, progress=replace(activity.progress, ends_by_itself="child"))
    activity = with_awaited_thread(activity, now.look, rank.sources)
    activity = with_stopped_child(with_thread_beside(activity, now.look, rank.sources), seen[-2:])
    activity = _with_exception(_with_logged_end(activity, rank), raised)
    return with_scene(activity, rank, ident)


def _moved(
    rank: RankEvidence, earlier: Sequence[JudgedThread], before: JudgedThread, now: JudgedThread, ident: str
) -> Progress:
    """Whether it moves between the last two looks; `earlier`: the looks before these, `ident`: of its thread."""
    in_main = now.thread is not None and not is_python_thread(now.thread)
    communicates = bool(now.standing.in_collective)
    issued = new_operations(rank.recorders, ident, in_main=in_main, communicates=communicates)
    if max((recorder.look for recorder in rank.recorders), default=0) < now.look.number:
        issued = None  # what it issued before shows nothing of the time since
    computed = [observed(moment, rank.sources) for moment in earlier if moment.standing.where == "busy_loop"]
    return compare(observed(before, rank.sources), observed(now, rank.sources), issued, computed)


def _process_state(
    rank: RankEvidence, now: JudgedThread, process: ProcessLook | None, seen: tuple[RankLook, ...], moved: Progress
) -> ProcessState:
    """`process`: the last look at it."""
    frozen = process is not None and is_frozen(thread.wchan for thread in process.threads)
    return ProcessState(
        stopped=frozen or bool(process and process.state in STOPPED and not moved.between_stops),
        frozen=frozen,
        replaced=other_program(now.look) is not None,
        tracer_pid=process.tracer_pid or None if process else None,
        uninterruptible=now.kernel.state == "D",
        uses_gpu=uses_gpu(rank),
        joined=has_joined(rank),
        phase=next((look.heartbeat.phase for look in reversed(seen) if look.heartbeat), ""),
    )


def _place(now: JudgedThread, rank: RankEvidence) -> Place:
    standing = now.standing
    stack = now.thread.frames if now.thread else ()
    return Place(
        where=standing.where,
        detail=standing.detail,
        frame=_shown_frame(now, stack, rank.sources),
        stack=stack,
        thread=now.thread.name or "" if now.thread else "",
        os_thread_id=now.thread.os_thread_id if now.thread else None,
        in_teardown=standing.where == "teardown"
        or "teardown" in standing.roles | standing.context
        or _past_main(now, _pid(now.look, rank)),
        gpu_guessed=standing.gpu_guessed,
        waits_on=now.kernel.waits_on,
        shared_lock=standing.shared_lock,
        lock_holder_pid=now.look.process.lock_holder_pid if now.look.process else None,
        lock_is_inherited=is_of_flock(now.kernel.wchan),
    )


def _end(rank: RankEvidence, *, gone: bool) -> RankEnd:
    ended = sorted(rank.processes, key=lambda process: process.look)
    return RankEnd(
        gone=gone,
        exit_code=_exit_code(rank) if gone else None,
        exit_signal=_last(process.exit_signal for process in ended),
        out_of_memory=_last(process.out_of_memory for process in ended),
    )


def _are_at_work(helpers: Helpers, process: ProcessLook | None) -> bool:
    """Whether processes that deliver to it run, or stand in code that they were asked to run."""
    children = process.children if process else ()
    return bool(helpers.child and helpers.child.frame) or any(child.state in ("R", "D") for child in children)


def _moment(rank: RankEvidence, look: RankLook, gpu: bool, trains_from: Entry | None) -> JudgedThread:
    pid = _pid(look, rank)
    training = look.heartbeat.training_ident if look.heartbeat else None
    thread = thread_of(look.threads, trains_from)
    thread = thread or blocking_thread(look.threads, pid, issuers(rank.recorders), training)
    main = thread is None or thread is main_thread(look.threads, pid)
    kernel = thread_look(look.process, thread, main=main)
    around = Circumstances(
        wait=kernel_wait(kernel.wchan, kernel.state, kernel.waits_on),
        on_cpu=_on_cpu(thread, kernel.state),
        gpu=gpu,
        hint=hint(source_text(rank.sources, thread.frames[0])) if thread and thread.frames else None,
        phase=look.heartbeat.phase if look.heartbeat else "",
        holds_gil=bool(thread and thread.owns_gil),
        pool=manages_processes(look.threads),
        children=bool(look.process and look.process.children),
    )
    if thread and thread.frames:
        return JudgedThread(look, thread, kernel, locate(thread.frames, around))
    return JudgedThread(look, None, kernel, locate_without_stack(around))


def _pid(look: RankLook, rank: RankEvidence) -> int | None:
    return look.process.pid if look.process and look.process.pid is not None else rank.pid


def _on_cpu(thread: ThreadStack | None, state: str | None) -> bool | None:
    """py-spy tells at the moment of the stack; /proc was read a moment before or after."""
    if thread is None:
        return None
    if thread.active:
        return True
    return None if state == "R" else False


def _last(values: Iterable[T | None]) -> T | None:
    found = None
    for value in values:
        found = value if value is not None else found
    return found


def _exit_code(rank: RankEvidence) -> int | None:
    """As somebody saw it; else the hook's last word, where no signal ended it."""
    looks_ = sorted(rank.processes, key=lambda process: process.look)
    if (seen := _last(look.exit_code for look in looks_)) is not None or any(look.exit_signal for look in looks_):
        return seen
    return next((beat.exit_code for beat in reversed(rank.heartbeat) if beat.ended and not beat.is_child), None)


def _is_gone(process: ProcessLook | None, seen: tuple[RankLook, ...]) -> bool:
    if process and (process.state in ENDED or process.exit_code is not None or process.exit_signal is not None):
        return True
    # The hook's last word comes before Python's own end, which may hang: a live process counts more.
    return not process and any(look.heartbeat.ended for look in seen if look.heartbeat)


def _shown_frame(now: JudgedThread, stack: tuple[CodeFrame, ...], sources: tuple[SourceLine, ...]) -> Frame | None:
    """The thread's own line; for a main thread that is ending and waits for another one, that one's."""
    if any(code_origin(frame.filename).origin in (Origin.JOB, Origin.LIBRARY) for frame in stack):
        return job_frame(stack, sources)
    for thread in now.look.threads:
        if any(code_origin(frame.filename).origin is Origin.JOB for frame in thread.frames) and not is_service(thread):
            return job_frame(thread.frames, sources)
    return job_frame(stack, sources)


def _past_main(now: JudgedThread, pid: int | None) -> bool:
    """Exit handlers and finalizers are called from C: the main thread's stack no longer begins with a module."""
    if now.thread is None or now.thread is not main_thread(now.look.threads, pid) or not now.thread.frames:
        return False
    outermost = now.thread.frames[-1]
    by_c = (Origin.JOB, Origin.LIBRARY, Origin.MACHINERY)
    return outermost.name != "<module>" and code_origin(outermost.filename).origin in by_c


def _raised(rank: RankEvidence) -> RaisedException | None:
    told = next((beat.exception for beat in reversed(rank.heartbeat) if beat.exception and not beat.is_child), "")
    logged = last_exception(rank.log_events, rank.rank, shared=shares_its_log(rank))
    if told and not (logged and logged.text.startswith(told)):
        if (unclaimed := exception_of_nobody(rank.log_events, told)) is not None and shares_its_log(rank):
            return unclaimed
        return RaisedException(told, logged.frame if logged else None, is_consequence(told))
    return logged


def _with_logged_end(activity: RankActivity, rank: RankEvidence) -> RankActivity:
    """How it ended by its launcher's word, where nobody saw the process itself; and its pid and host."""
    event, end = logged_end(rank.log_events, rank.rank), activity.end
    if event is None or end.exit_code is not None or end.exit_signal is not None:
        return activity
    return replace(
        activity,
        end=replace(end, exit_code=event.exit_code, exit_signal=event.exit_signal),
        pid=activity.pid if activity.pid is not None else event.pid,
        host=activity.host or event.host,
    )


def _with_exception(activity: RankActivity, raised: RaisedException | None) -> RankActivity:
    if raised is None:
        return activity
    lives = activity.known and not activity.end.gone and not activity.place.in_teardown
    return replace(
        activity,
        exceptions=replace(activity.exceptions, raised=replace(raised, swallowed=lives)),
        why=(*activity.why, Fact(f"it raised {raised.text}", "log")),
    )


def _why(now: JudgedThread) -> tuple[Fact, ...]:
    facts = []
    if now.thread and now.thread.frames:
        index = job_frame_index(now.thread.frames) or 0
        frame = now.thread.frames[index]
        thread = "main thread" if now.thread.name == "MainThread" else f"thread {now.thread.name or 'without a name'}"
        facts.append(Fact(f"its {thread} is at {frame.filename}:{frame.line} in {frame.name}", "py-spy"))
        inner = now.thread.frames[0]
        if index:
            facts.append(Fact(f"beneath that it is in {inner.name} of {code_origin(inner.filename).module}", "py-spy"))
    elif now.look.stack_error:
        facts.append(Fact(f"its stack could not be read: {now.look.stack_error}", "py-spy"))
    if now.kernel.state not in ("X", "Z") and (now.kernel.state or now.kernel.wchan):
        asleep = f", asleep in {now.kernel.wchan}" if now.kernel.wchan and now.kernel.wchan != "0" else ""
        on = f", for {now.kernel.waits_on}" if now.kernel.waits_on else ""
        facts.append(Fact(f"the kernel shows the thread in state {now.kernel.state or 'unknown'}{asleep}{on}", "/proc"))
    return tuple(facts)
