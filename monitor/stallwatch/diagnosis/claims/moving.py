"""The job moves: healthy, with its proof; or a long wait whose culprit makes progress."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    activity_facts,
    common_where,
    main_wait,
    named,
    unrecorded_operation,
    waiting_facts,
)
from stallwatch.diagnosis.ends import end_of, exit_code
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.waits.roots import goes_on
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Confidence, Fact, Rejected


def waiting(analysis: Analysis) -> Saying:
    """A long wait that will end: all for whom the others wait make progress."""
    moving = _awaited_and_moving(analysis)
    if not moving:
        return None
    wait = main_wait(analysis, moving)
    return Claim(
        cause="waiting",
        culprits=tuple(moving),
        confidence="likely",
        because=(
            Fact(f"{named(moving)} {verb(moving, 'makes', 'make')} progress", "two looks"),
            *waiting_facts(analysis),
            *activity_facts(analysis, moving),
        ),
        where=common_where(analysis, moving),
        operation=None if wait else unrecorded_operation(analysis, moving),
    ).at(analysis, wait)


def _awaited_and_moving(analysis: Analysis) -> list[int]:
    case = analysis.case
    if analysis.hangs and (absent := list(analysis.absent)):
        return absent if all(goes_on(case, rank) for rank in absent) else []
    alive = [rank for rank in case.observed if not case.activity(rank).end.gone]
    moving = [rank for rank in alive if _moved(case, rank)]
    still = [rank for rank in alive if rank not in moving]
    # Nobody is known to be elsewhere: whose turn has just come may be what the others wait for.
    inside = any(not analysis.graph.unknown[point] for point in analysis.roots.closed) and not analysis.ends_move
    stuck = analysis.roots.cycles or inside
    if not still or stuck or not set(still) <= set(analysis.waiting):
        return []
    return [rank for rank in moving if rank not in analysis.waiting] or moving


def healthy(analysis: Analysis) -> Saying:
    """A claim that needs its proof: between two looks every rank that was seen moved. What is unchanged, or was looked
    at once, may stand."""
    case = analysis.case
    if any(summary.outran for summary in case.summaries.values()):
        return Rejected("healthy", "something has not completed that the ring has lost")
    ended = [rank for rank, activity in case.activities.items() if activity.end.gone]
    if any(exit_code(end_of(analysis, rank)) != 0 for rank in ended):
        return None
    if ended and len(ended) == len(case.observed):
        return Claim("healthy", (), "likely", (Fact("every process ended with exit code 0", "/proc"),))
    still = [rank for rank in case.observed if not (case.activity(rank).end.gone or _moved(case, rank))]
    if still or not case.observed:
        does = verb(still, "was", "were")
        return Rejected("healthy", f"{named(still)} {does} not seen to move between two looks" if still else "no rank")
    if analysis.proven_stuck and not analysis.ends_move:
        return None
    source = "flight recorders" if any(case.recorded(rank) for rank in case.observed) else "stacks and steps"
    return Claim("healthy", (), _how_sure(case), (Fact("every rank that was seen moved between two looks", source),))


def _moved(case: Case, rank: int) -> bool:
    return bool(case.activity(rank).progress.moving) or _calls_end(case, rank)


def _how_sure(case: Case) -> Confidence:
    """A stack that changed is a thread that moved; only calls that end, or steps, are a job that moves."""
    if case.looks > 1 and case.world_size is not None and all(_calls_end(case, rank) for rank in case.world):
        return "certain"
    recorded = any(case.recorded(rank) for rank in case.observed)
    return "likely" if recorded or any(_steps(case, rank) for rank in case.observed) else "possible"


def _calls_end(case: Case, rank: int) -> bool:
    """Until the last look at it: a dump that is missing there says nothing of whether they still do."""
    summary, evidence = case.summaries.get(rank), case.evidence.get(rank)
    looks = [seen.look for seen in evidence.processes] + [seen.look for seen in evidence.stacks] if evidence else []
    last = max(looks, default=0)
    return case.recorded(rank) and summary is not None and bool(summary.advanced) and summary.look >= last


def _steps(case: Case, rank: int) -> bool:
    return bool(case.activity(rank).progress.moving) and any(
        fact.source == "heartbeat" for fact in case.activity(rank).why
    )
