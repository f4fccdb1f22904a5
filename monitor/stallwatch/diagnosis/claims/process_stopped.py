"""A process is stopped: by a signal, or by a debugger that traces it."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, operation_of, waiting_facts
from stallwatch.model.verdict import Fact


def claim(analysis: Analysis) -> Saying:
    stopped = sorted(rank for rank, activity in analysis.case.activities.items() if activity.stopped)
    if not stopped:
        return None
    facts = [
        Fact(
            f"rank {rank} is stopped, traced by process {tracer}"
            if (tracer := analysis.case.activity(rank).tracer_pid)
            else f"rank {rank} is stopped by a signal, nobody traces it",
            "/proc",
        )
        for rank in stopped
    ]
    wait = main_wait(analysis, stopped)
    return Claim(
        cause="process_stopped",
        culprits=tuple(stopped),
        confidence="certain" if wait is not None else "likely",
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, stopped)),
        group=wait.point.group if wait else None,
        operation=operation_of(analysis, wait) if wait else None,
        seq=wait.point.seq or None if wait else None,
    )
