"""A look at a rank as `progress` compares it: its judged thread, its process, and the threads and children of its own
that it waits for."""

from typing import NamedTuple

from stallwatch.diagnosis.activity.awaited_children import only_awaited
from stallwatch.diagnosis.activity.awaited_threads import awaited_threads
from stallwatch.diagnosis.activity.blocking_location import STRONG_ROLES, BlockingLocation
from stallwatch.diagnosis.activity.kernel_waits import kernel_wait
from stallwatch.diagnosis.activity.moved_bytes import moved_bytes, waits_by_itself
from stallwatch.diagnosis.activity.threads import RankLook, ThreadLook, main_thread, thread_look
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin, function
from stallwatch.diagnosis.frames.meaning import meaning
from stallwatch.model.evidence import CodeFrame, SourceLine, ThreadStack
from stallwatch.progress.observation import Calls, Lines, Observation, SeenChild, Stack


class JudgedThread(NamedTuple):
    """The judged thread at one look."""

    look: RankLook
    thread: ThreadStack | None
    kernel: ThreadLook
    standing: BlockingLocation


def observed(moment: JudgedThread, sources: tuple[SourceLine, ...] = ()) -> Observation:
    """Given the judged thread at one look, and the lines that were read, return what is compared with another look."""
    process, beat, own, awaited = moment.look.process, moment.look.heartbeat, moment.thread, _awaited(moment)
    own_id = own.os_thread_id if own else None
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
        moved_bytes=moved_bytes(moment.look, own_id, [one.pid for one in awaited]),
        waits_by_itself=waits_by_itself(moment.kernel, moment.standing),
        receives=_receives(moment.thread) or _is_given(moment),
        at_a_pipe=_at_a_pipe(moment),
        own_bytes=next((one.moved_bytes for one in process.threads if one.tid == own_id), None) if process else None,
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
    at_a_socket = kernel_wait(kernel.wchan, kernel.state, kernel.waits_on) == "socket"
    answers = kernel.wakes if _receives(thread) or at_a_socket else None
    return SeenChild(number, kernel.cpu_ticks, stack, (stack,) if stack else (), answers, kernel.own_wakes)


_COMMUNICATES, _OF_A_POLL = ("subprocess", "_communicate"), 3  # frames: selectors' are above it
# Calls of Python's library that block in one receive or send; an event loop's poll wakes for other reasons too.
_BLOCKING = {"socket": frozenset({"readinto", "sendfile"}), "ssl": frozenset({"read", "recv_into", "recv", "send"})}


def _receives(thread: ThreadStack | None) -> bool:
    inner = thread.frames[0] if thread and thread.frames else None
    return inner is not None and function(inner.name) in _BLOCKING.get(code_origin(inner.filename).module, ())


def _is_given(moment: JudgedThread) -> bool:
    """The kernel has it wait for a file system, or for a socket that is neither a group's nor the store's: whoever made
    the call. A socket with a time-out is polled."""
    wait = kernel_wait(moment.kernel.wchan, moment.kernel.state, moment.kernel.waits_on)
    return wait == "file" or (wait == "socket" and moment.standing.where == "socket")


def _at_a_pipe(moment: JudgedThread) -> bool:
    """By the kernel, or where subprocess polls those of its child."""
    wait = kernel_wait(moment.kernel.wchan, moment.kernel.state)
    frames = moment.thread.frames[:_OF_A_POLL] if moment.thread else ()
    named = ((code_origin(frame.filename).module, function(frame.name)) for frame in frames)
    return wait in ("pipe", "pipe_write") or (wait == "poll" and _COMMUNICATES in named)


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
            moved_bytes=seen[pid].moved_bytes if pid in seen else None,
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
