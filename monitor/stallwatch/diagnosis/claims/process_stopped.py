"""A process is stopped: by a signal, by a debugger that traces it, or with its control group."""

from stallwatch.diagnosis.activity.rank_activity import ProcessState
from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, waiting_facts
from stallwatch.model.verdict import Fact


def claim(analysis: Analysis) -> Saying:
    """A process is in state T, by a signal or under a debugger, or is frozen with its control group."""
    stopped = sorted(rank for rank, activity in analysis.case.activities.items() if activity.process.stopped)
    if not stopped:
        return None
    facts = [Fact(f"rank {rank} is {_held(analysis.case.activity(rank).process)}", "/proc") for rank in stopped]
    wait = main_wait(analysis, stopped)
    return Claim(
        cause="process_stopped",
        culprits=tuple(stopped),
        confidence="certain" if wait is not None else "likely",
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, stopped)),
    ).at(analysis, wait)


def _held(process: ProcessState) -> str:
    """By whom it can be let go on."""
    if process.frozen:
        return "frozen with its control group"
    if process.tracer_pid:
        return f"stopped, traced by process {process.tracer_pid}"
    return "stopped by a signal, nobody traces it"
