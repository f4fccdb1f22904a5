"""Descent into the child processes that a rank waits for: loader workers, compilers, pools."""

import msgspec

from stallwatch.diagnosis.activity.looks import Look
from stallwatch.diagnosis.activity.result import Activity
from stallwatch.diagnosis.activity.source import job_frame
from stallwatch.diagnosis.activity.standing import Circumstances, stand
from stallwatch.diagnosis.activity.threads import main_thread
from stallwatch.diagnosis.frames import Origin, place
from stallwatch.model.evidence import CodeFrame, SourceLine
from stallwatch.model.verdict import Fact


def with_child(activity: Activity, look: Look, sources: tuple[SourceLine, ...]) -> Activity:
    """Descend: the worker that is at work on something, not one that waits for the next index."""
    for pid, threads in look.children:
        thread = main_thread(threads, pid)
        if thread is None or not thread.frames or not _is_at_work(thread.frames):
            continue
        standing = stand(thread.frames, Circumstances(wait=None, on_cpu=thread.active, gpu=False))
        frame = job_frame(thread.frames, sources)
        fact = Fact(f"its child process {pid} is at {frame.file}:{frame.line}" if frame else f"child {pid}", "py-spy")
        return msgspec.structs.replace(
            activity, child_pid=pid, child_frame=frame, child_detail=standing.detail, why=(*activity.why, fact)
        )
    return activity


def _is_at_work(frames: tuple[CodeFrame, ...]) -> bool:
    """A loader's worker that has nothing to do waits for an index straight in its loop."""
    for frame in frames:
        code = place(frame.filename)
        if code.origin is Origin.JOB:
            return True
        if code.module == "torch.utils.data._utils.worker":
            return False
    return any(place(frame.filename).origin is Origin.JOB for frame in frames)
