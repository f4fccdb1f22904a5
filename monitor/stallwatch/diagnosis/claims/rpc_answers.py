"""Ranks that wait for answers of other workers (torch's RPC), of which no recorder holds anything: whoever does not
answer may be any of those that are asked, or wait for a rank that has left."""

from collections.abc import Sequence

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, named, waiting_facts
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
from stallwatch.diagnosis.frames.meaning import Role, meaning
from stallwatch.diagnosis.job.case import Case
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.verdict import Fact

_RPC = "torch.distributed.rpc"
_WAITS: frozenset[Role] = frozenset(("idle", "join", "lock", "process_queue", "queue", "shared_lock"))


def claim(analysis: Analysis) -> Saying:
    """All that others wait for stand in such a call, and no recorder shows who waits for whom."""
    asking = [rank for rank in analysis.absent if _asks(analysis.case.activity(rank).place.stack)]
    if not analysis.hangs or not asking or len(asking) < len(analysis.absent):
        return None
    if main_wait(analysis, asking) is not None:
        return None
    return _undecided(analysis, asking, "")


def all_ask(analysis: Analysis) -> Saying:
    """Every rank stands in such a call, and so does every thread of theirs that carries one out; no other thread of the
    job's code is at work. What answers in C++ nobody sees."""
    case = analysis.case
    if analysis.waiting or not case.observed or not all(_only_asks(case, rank) for rank in case.observed):
        return None
    return _undecided(
        analysis, list(case.observed), ", and no Python thread of theirs is seen at work on what was asked"
    )


def _undecided(analysis: Analysis, asking: list[int], besides: str) -> Claim:
    told = f"{named(asking)} {verb(asking, 'waits', 'wait')} for the answer of another worker (RPC)"
    frame = analysis.case.activity(asking[0]).place.frame
    at = f" at {frame.file}:{frame.line}" if frame else ""
    return Claim(
        cause="undecided",
        culprits=(),
        confidence="possible",
        because=(Fact(f"{told}{besides}", "py-spy"), *waiting_facts(analysis), *activity_facts(analysis, asking)),
        told=f"{told}{at}{besides}; who does not answer nothing tells, for no recorder holds such calls",
        missing=("whom these calls asked: the processes that carry them out, and what those wait for",),
        told_waiting=() if analysis.waiting else tuple(asking),
    )


def _only_asks(case: Case, rank: int) -> bool:
    """It stands in such a call, and so does every thread of it that carries one out, or may (`async_execution` has a
    thread of the job's own do it): what computes there may be what the others wait for."""
    activity, seen = case.activity(rank), case.evidence.get(rank)
    if activity.progress.moving is not False or seen is None or not seen.stacks or not _asks(activity.place.stack):
        return False
    stacks = [thread.frames for thread in seen.stacks[-1].threads]
    return all(_asks(frames) for frames in stacks if _answers(frames) or _works(frames))


def _answers(frames: Sequence[CodeFrame]) -> bool:
    return bool(frames) and code_origin(frames[-1].filename).module.startswith(_RPC)


def _works(frames: Sequence[CodeFrame]) -> bool:
    """In the job's own code, and what that calls is no wait for another thread or for work."""
    own = next((i for i, frame in enumerate(frames) if code_origin(frame.filename).origin is Origin.JOB), None)
    called = (meaning(frame) for frame in frames[:own])
    return own is not None and not any(found is not None and found.role in _WAITS for found in called)


def _asks(frames: Sequence[CodeFrame]) -> bool:
    """By the frames inside of its own line: those outside of it may have been called by another worker."""
    for frame in frames:
        found = code_origin(frame.filename)
        if found.origin is Origin.JOB:
            return False
        if found.module.startswith(_RPC):
            return True
    return False
