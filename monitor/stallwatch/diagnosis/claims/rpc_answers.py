"""Ranks that wait for answers of other workers (torch's RPC), of which no recorder holds anything: whoever does not
answer may be any of those that are asked, or wait for a rank that has left."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, named, waiting_facts
from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
from stallwatch.diagnosis.job.case import Case
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Fact

_RPC = "torch.distributed.rpc"


def claim(analysis: Analysis) -> Saying:
    """All that others wait for stand in such a call, and no recorder shows who waits for whom."""
    asking = [rank for rank in analysis.absent if _asks(analysis.case, rank)]
    if not analysis.hangs or not asking or len(asking) < len(analysis.absent):
        return None
    if main_wait(analysis, asking) is not None:
        return None
    told = f"{named(asking)} {verb(asking, 'waits', 'wait')} for the answer of another worker (RPC)"
    frame = analysis.case.activity(asking[0]).place.frame
    at = f" at {frame.file}:{frame.line}" if frame else ""
    return Claim(
        cause="undecided",
        culprits=(),
        confidence="possible",
        because=(Fact(told, "py-spy"), *waiting_facts(analysis), *activity_facts(analysis, asking)),
        told=f"{told}{at}; who does not answer nothing tells, for no recorder holds such calls",
        missing=("whom these calls asked: the processes that carry them out, and what those wait for",),
    )


def _asks(case: Case, rank: int) -> bool:
    """By the frames inside of its own line: those outside of it may have been called by another worker."""
    for frame in case.activity(rank).place.stack:
        found = code_origin(frame.filename)
        if found.origin is Origin.JOB:
            return False
        if found.module.startswith(_RPC):
            return True
    return False
