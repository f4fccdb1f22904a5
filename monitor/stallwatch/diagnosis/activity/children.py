"""Descent into the child processes that a rank waits for: loader workers, compilers, pools."""

import msgspec

from stallwatch.diagnosis.activity.blocking_location import Circumstances, stand
from stallwatch.diagnosis.activity.kernel import kernel_wait
from stallwatch.diagnosis.activity.looks import Look
from stallwatch.diagnosis.activity.rank_activity import Activity
from stallwatch.diagnosis.activity.threads import main_thread
from stallwatch.diagnosis.frames.code_origin import Origin, place
from stallwatch.diagnosis.frames.source import hint, job_frame, source_text
from stallwatch.model.evidence import ChildProcess, CodeFrame, SourceLine
from stallwatch.model.verdict import Fact


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
