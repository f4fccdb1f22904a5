"""The looks at one rank put side by side: its own stacks, its children's, its process and its heartbeat."""

from typing import NamedTuple

from stallwatch.model.evidence import ProcessLook, RankEvidence, ThreadStack, ThreadState
from stallwatch.model.snapshot import Heartbeat


class ThreadLook(NamedTuple):
    """One thread's kernel state; None where nothing was read."""

    state: str | None
    wchan: str | None
    cpu_ticks: int | None
    wakes: int | None = None
    own_wakes: int = 0  # since, by our look


class Look(NamedTuple):
    number: int
    threads: tuple[ThreadStack, ...]  # of the rank's own process, in an order of their own
    children: tuple[tuple[int, tuple[ThreadStack, ...]], ...]  # by pid
    process: ProcessLook | None
    heartbeat: Heartbeat | None
    stack_error: str | None


def looks(rank: RankEvidence) -> tuple[Look, ...]:
    """Oldest first. A rank without any evidence gives none."""
    beats = [beat for beat in rank.heartbeat if not beat.is_child]
    processes = {process.look: process for process in sorted(rank.processes, key=lambda process: process.source)}
    numbers = {stacks.look for stacks in rank.stacks} | set(processes) | set(range(1, len(beats) + 1))
    return tuple(
        _look(rank, number, processes.get(number), beats[number - 1] if 0 < number <= len(beats) else None)
        for number in sorted(numbers)
    )


def _look(rank: RankEvidence, number: int, process: ProcessLook | None, beat: Heartbeat | None) -> Look:
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
    return Look(
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
    if process.state in ("T", "t", "Z", "X"):
        state = process.state
    if found is None:
        return ThreadLook(state, wchan, None)
    return ThreadLook(state, wchan, found.cpu_ticks, found.wakes, found.own_wakes)


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
