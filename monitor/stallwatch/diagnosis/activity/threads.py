"""The looks at a rank side by side, and which thread of its process matters: the main one, or the one that does the
training or blocks it; and whether its threads show that it has joined its job."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from stallwatch.diagnosis.activity.kernel_waits import stored_at
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, function
from stallwatch.diagnosis.frames.meaning import Role, meaning
from stallwatch.model.evidence import (
    ANSWERED_WITHOUT_DUMP,
    CodeFrame,
    ProcessLook,
    RankEvidence,
    SampledStack,
    ThreadStack,
    ThreadState,
)
from stallwatch.model.process import ENDED, STOPPED
from stallwatch.model.snapshot import Heartbeat

# The looks at one rank put side by side: its own stacks, its children's, its process and its heartbeat.


class ThreadLook(NamedTuple):
    """One thread's kernel state; None where nothing was read."""

    state: str | None
    wchan: str | None
    cpu_ticks: int | None
    wakes: int | None = None
    own_wakes: int = 0  # since, by our look
    waits_on: str = ""
    awaited_child: int | None = None
    endless: bool | None = None


# Pauses of other looks at it wake a thread as well (six times in 72 s were seen, two of which its look counted).
_WAKES_OF_ONE_WAIT, _A_SECOND = 4, 0.1


def ended_meanwhile(first: ThreadLook, last: ThreadLook, seconds: float) -> bool:
    """Given a thread that waits at both looks, so many seconds apart, return whether it went to sleep in between more
    often than one wait makes it: what it waited for came, and it waits again. False where nothing was read."""
    if first.wakes is None or last.wakes is None:
        return False
    return last.wakes - first.wakes - first.own_wakes > _WAKES_OF_ONE_WAIT + _A_SECOND * seconds


class RankLook(NamedTuple):
    """One look at a rank: the stacks of its process and of its children, its process, its heartbeat. What was not read
    is None or empty."""

    number: int
    threads: tuple[ThreadStack, ...]  # of the rank's own process, in an order of their own
    children: tuple[tuple[int, tuple[ThreadStack, ...]], ...]  # by pid
    process: ProcessLook | None
    heartbeat: Heartbeat | None
    stack_error: str | None


def looks(rank: RankEvidence) -> tuple[RankLook, ...]:
    """Oldest first. A rank without any evidence gives none."""
    beats = [beat for beat in rank.heartbeat if not beat.is_child]
    processes = {process.look: process for process in sorted(rank.processes, key=lambda process: process.source)}
    numbers = {stacks.look for stacks in rank.stacks} | set(processes) | set(range(1, len(beats) + 1))
    return tuple(
        _look(rank, number, processes.get(number), beats[number - 1] if 0 < number <= len(beats) else None)
        for number in sorted(numbers)
    )


def _look(rank: RankEvidence, number: int, process: ProcessLook | None, beat: Heartbeat | None) -> RankLook:
    own: list[ThreadStack] = []
    children: dict[int, list[ThreadStack]] = {}
    error = None
    for stacks in rank.stacks:
        if stacks.look != number:
            continue
        is_child = "child" in stacks.source.rsplit("/", 1)[-1]
        if stacks.error and not is_child:
            error = min(error or stacks.error, stacks.error)
        for thread in stacks.threads:
            # py-spy with subprocesses puts several processes into one file.
            pid = thread.pid if thread.pid is not None else stacks.pid
            if is_child or (pid is not None and stacks.pid is not None and pid != stacks.pid):
                children.setdefault(pid if pid is not None else -1, []).append(thread)
            else:
                own.append(thread)
    return RankLook(
        number,
        tuple(sorted(own, key=thread_key)),
        tuple((pid, tuple(sorted(threads, key=thread_key))) for pid, threads in sorted(children.items())),
        process,
        beat,
        error,
    )


def thread_key(thread: ThreadStack) -> tuple[object, ...]:
    """An order of threads that does not depend on the order in which they were read."""
    frames = tuple((frame.filename, frame.line, frame.name) for frame in thread.frames)
    numbers = tuple((number is None, number or 0) for number in (thread.os_thread_id, thread.ident, thread.pid))
    return (thread.os_thread_id or 0, thread.name or "", frames, thread.owns_gil, thread.active, numbers)


def thread_look(process: ProcessLook | None, thread: ThreadStack | None, *, main: bool) -> ThreadLook:
    """The kernel's view of a thread; the process' own line in /proc is its main thread's."""
    if process is None:
        return ThreadLook(None, None, None)
    found = _thread_state(process, thread, main=main)
    state, wchan = (found.state, found.wchan) if found else (None, None)
    if main:
        state, wchan = state or process.state, wchan or process.wchan
    if process.state in STOPPED | ENDED:
        state = process.state
    if found is None:
        return ThreadLook(state, wchan, None)
    return ThreadLook(
        state,
        wchan,
        found.cpu_ticks,
        found.wakes,
        found.own_wakes,
        stored_at(wchan, state, found.waits_on),
        found.awaited_child,
        found.endless,
    )


def _thread_state(process: ProcessLook, thread: ThreadStack | None, *, main: bool) -> ThreadState | None:
    wanted = {thread.os_thread_id} if thread and thread.os_thread_id is not None else set()
    if main and process.pid is not None:
        wanted.add(process.pid)
    return next((state for state in process.threads if state.tid in wanted), None)


def uses_gpu(rank: RankEvidence) -> bool:
    """Whether the process talks to a GPU: CUDA's or NCCL's threads, or what NCCL's recorder holds (builds for GPUs have
    one in every process)."""
    names = (state.name for process in rank.processes for state in process.threads)
    return any(name.startswith(("cuda", "pt_nccl", "NCCL", "rccl", "hip")) for name in names) or any(
        recorder.backend in ("nccl", "xccl", "hccl") and recorder.operations for recorder in rank.recorders
    )


_WAITS_FOR_A_THREAD: frozenset[Role] = frozenset({"join", "lock", "queue"})
_TRAINS: frozenset[Role] = frozenset({"collective", "backward", "init", "dataloader"})
# A background thread (checkpoint saver) may use collectives of its own; these only a training loop does.
_TRAINS_SURELY: frozenset[Role] = frozenset({"backward", "dataloader"})


def main_thread(threads: tuple[ThreadStack, ...], pid: int | None) -> ThreadStack | None:
    """The thread whose id is the process', else by Python's name, else the one that runs a module."""
    by_id = [thread for thread in threads if pid is not None and thread.os_thread_id == pid]
    by_name = [thread for thread in threads if thread.name == "MainThread"]
    by_module = [thread for thread in threads if thread.frames and thread.frames[-1].name == "<module>"]
    return min(by_id or by_name or by_module, key=thread_key, default=None)


def training_thread(threads: tuple[ThreadStack, ...], pid: int | None, ident: int | None) -> ThreadStack | None:
    """The thread that steps, by its hook's word; else the main thread, and where that one is a worker of an executor
    that has nothing to do any more: steps may be handed to any of these."""
    stepper = next((thread for thread in threads if ident is not None and thread.ident == ident), None)
    return stepper if stepper is not None and not _runs_nothing(stepper) else main_thread(threads, pid)


def blocking_thread(
    threads: tuple[ThreadStack, ...],
    pid: int | None,
    issuers: frozenset[str] = frozenset(),
    training: int | None = None,
) -> ThreadStack | None:
    """Choose the thread to judge. `issuers` are idents of threads that issued collectives, by the recorder; `training`
    is that of the thread that steps, by the hook."""
    main = training_thread(threads, pid, training)
    others = [t for t in threads if t is not main and t.frames and not is_service(t)]
    # A service thread that has the GIL, our pulse too, has it for a moment: that is not who keeps it.
    owners = [t for t in threads if t.owns_gil and not t.active and t.frames and (t is main or not is_service(t))]
    if owners and not (main and main.active):
        return min(owners, key=thread_key)
    if main is None or not main.frames:
        return _busiest(others) or main
    inner = meaning(main.frames[0])
    if inner and inner.role == "backward":
        # The engine runs Python hooks and custom functions in threads of its own, without Python's thread start.
        engine = [t for t in others if not is_python_thread(t)]
        return _busiest(engine) or main
    if ident_of(main) in issuers or _has(main.frames, _TRAINS) or _roles(main.frames) & {"teardown", "init"}:
        return main
    if others_issuing := [t for t in others if ident_of(t) in issuers]:
        return _busiest(others_issuing) or main
    waits = _roles(_call(main.frames))
    if waits & {"join"} or _runs_event_loop(main.frames):
        candidates = [t for t in others if _has(t.frames, _TRAINS)] or [t for t in others if _has_job_code(t)]
        return candidates[0] if len(candidates) == 1 else _busiest(candidates, _TRAINS) or main
    if waits & _WAITS_FOR_A_THREAD or not main.active:
        return _busiest([t for t in others if _has(t.frames, _TRAINS_SURELY)]) or main
    return main


def ident_of(thread: ThreadStack) -> str:
    """Python's ident of a thread as recorders write it, "" where py-spy did not tell it."""
    return str(thread.ident) if thread.ident is not None else ""


def is_service(thread: ThreadStack) -> bool:
    """Threads of libraries that wait for work or watch: feeders, monitors, loggers, our own pulse, memory pinning."""
    if thread.name.startswith("stallwatch") or not thread.frames:
        return True
    inner = meaning(thread.frames[0])
    if inner and inner.role == "idle":
        return True
    for frame in thread.frames:
        code = code_origin(frame.filename)
        if code.module.startswith(("torch.utils.data._utils.pin_memory", "tqdm.", "stallwatch")):
            return True
        if code.origin is Origin.STDLIB and function(frame.name) in ("_feed", "_monitor", "serve_forever"):
            return True
    return _runs_nothing(thread)


def _runs_nothing(thread: ThreadStack) -> bool:
    """Whether it has no frame but Python's own."""
    origins = {code_origin(frame.filename).origin for frame in thread.frames}
    return origins <= {Origin.STDLIB, Origin.SYNTHETIC, Origin.LAUNCHER}


# The threads that carry results from worker processes to whoever waits for them, and are there as long as the pool is.
_POOLS = (
    ("concurrent.futures.process", "run"),
    ("multiprocessing.pool", "_handle_results"),
    ("torch.distributed.checkpoint._async_process_executor", "_execute_save_impl"),  # of one save in a process
)


def manages_processes(threads: tuple[ThreadStack, ...]) -> bool:
    """Whether a thread is that of a pool of processes: who waits for a result may wait for one of its workers."""
    return any(_is_of_a_pool(thread) for thread in threads)


_POOL = re.compile(r"(?:multiprocessing|multiprocess|billiard)\.pool")


def reads_no_result(threads: tuple[ThreadStack, ...]) -> bool:
    """Whether a pool of multiprocessing keeps its workers alive, and no thread reads what they give: one that cannot be
    unpickled, an exception with a constructor of its own above all, has ended that thread. No result comes any more."""
    names = {
        function(frame.name)
        for thread in threads
        for frame in thread.frames
        if _POOL.fullmatch(code_origin(frame.filename).module)
    }
    return "_handle_workers" in names and "_handle_results" not in names


def _is_of_a_pool(thread: ThreadStack) -> bool:
    return any((code_origin(frame.filename).module, function(frame.name)) in _POOLS for frame in thread.frames)


def brings_results(thread: ThreadStack) -> bool:
    """Whether it hands on what worker processes give: that of a pool, or a data loader's that pins memory."""
    modules = (code_origin(frame.filename).module for frame in thread.frames)
    return _is_of_a_pool(thread) or any(module.startswith("torch.utils.data._utils.pin_memory") for module in modules)


def is_python_thread(thread: ThreadStack) -> bool:
    """Whether Python started the thread (`threading`'s bootstrap is in its stack), rather than a library in native
    code."""
    return any(code_origin(f.filename).module == "threading" and "bootstrap" in f.name for f in thread.frames[-2:])


def _call(frames: tuple[CodeFrame, ...]) -> tuple[CodeFrame, ...]:
    """The frames inside of the innermost one of the job: what called that one is none of what it does."""
    own = (at for at, frame in enumerate(frames) if code_origin(frame.filename).origin is Origin.JOB)
    return frames[: next(own, len(frames))]


def _roles(frames: tuple[CodeFrame, ...]) -> set[Role]:
    return {found.role for frame in frames if (found := meaning(frame))}


def _has(frames: tuple[CodeFrame, ...], roles: frozenset[Role]) -> bool:
    return bool(_roles(frames) & roles)


def _runs_event_loop(frames: tuple[CodeFrame, ...]) -> bool:
    return any(code_origin(frame.filename).module.startswith("asyncio.") for frame in _call(frames))


def _has_job_code(thread: ThreadStack) -> bool:
    return any(code_origin(frame.filename).origin in (Origin.JOB, Origin.LIBRARY) for frame in thread.frames)


def _busiest(threads: list[ThreadStack], roles: frozenset[Role] = _TRAINS) -> ThreadStack | None:
    """Prefer a thread inside of training, then the deepest; ties by thread id."""
    return min(threads, key=lambda t: (not _has(t.frames, roles), -len(t.frames), thread_key(t)), default=None)


# Whether a process has joined its job: init_process_group leaves traces before anything is recorded.


# Names as the kernel cuts them. torch starts these threads in the constructor of a process group.
_GROUP_THREADS = ("pt_nccl", "pt_gloo_")  # torch 2.15: pt_nccl2_heartbt
_GLOO_DEVICE = "gloo_tcp_loop"  # one a process, for the sockets of all its groups (seen with torch 2.13)


def has_joined(rank: RankEvidence) -> bool | None:
    """True when the process shows a process group, False when it was asked and has none, None when nothing tells.

    False may also be a process that has destroyed its groups: it counts only while nobody has communicated.
    """
    if any(is_of_group(thread) for look in rank.processes for thread in look.threads):
        return True
    if rank.recorders or any(beat.groups for beat in rank.heartbeat):
        return True  # the hook asks no recorder before torch.distributed is initialised
    asked = [attempt for attempt in rank.attempts if attempt.what == "flight_recorder" and attempt.answered]
    if asked and all(ANSWERED_WITHOUT_DUMP in attempt.detail for attempt in asked):
        return False
    return None


def is_of_group(thread: ThreadState) -> bool:
    """Whether a thread, by the name that the kernel shows, is one that torch starts with a process group."""
    return thread.name.startswith(_GROUP_THREADS)


def carries_collectives(thread: ThreadState) -> bool:
    """Whether what a thread reads and writes, by the name that the kernel shows, is of collectives."""
    return is_of_group(thread) or thread.name == _GLOO_DEVICE


def has_no_group_thread(rank: RankEvidence) -> bool:
    """True when the threads of the process are known and none belongs to a process group."""
    threads = [look.threads for look in rank.processes if look.threads]
    return bool(threads) and not any(is_of_group(thread) for look in threads for thread in look)


# A rank's profiles: stacks that were sampled over some time.


def training_stacks(rank: RankEvidence, thread_id: int | None = None) -> list[SampledStack]:
    """Of a rank's profiles, all looks together: those of the thread that trains, by its id, else of the main one."""
    own = [stack for profile in rank.profiles if profile.pid is None for stack in profile.stacks]
    mine = [stack for stack in own if thread_id is not None and stack.os_thread_id == thread_id]
    return mine or _of_main(own)


def child_stacks(rank: RankEvidence) -> list[SampledStack]:
    """Of the main threads of its children, workers of a loader for the most part."""
    profiles = (profile for profile in rank.profiles if profile.pid is not None)
    return [stack for profile in profiles for stack in _of_main(profile.stacks)]


def _of_main(stacks: Iterable[SampledStack]) -> list[SampledStack]:
    return [
        stack
        for stack in stacks
        if stack.thread == "MainThread" or (not stack.thread and stack.frames[-1].name == "<module>")
    ]


def other_program(look: RankLook) -> str | None:
    """The name of the program that a rank with a hook has become by exec, None where it has not. The kernel then ends
    all threads but the first, and the hook's pulse is one of them; that py-spy finds no Python alone proves nothing."""
    threads, beat = look.process.threads if look.process else (), look.heartbeat
    if beat is None or beat.ended or look.threads or not look.stack_error or len(threads) != 1:
        return None
    return threads[0].name or "without a name"
