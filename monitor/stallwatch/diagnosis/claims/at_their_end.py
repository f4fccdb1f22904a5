"""Every rank is past its training and stands in its own end: none waits for another, and what keeps each is told."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, named
from stallwatch.diagnosis.frames.meaning import READ_BY_NOBODY
from stallwatch.diagnosis.report.text import format_location
from stallwatch.diagnosis.step import starts_job
from stallwatch.formats.rank_ranges import verb

_OVER = starts_job("Training itself is over: what it has saved is whole. End what stands there.")


def claim(analysis: Analysis) -> Saying:
    """All ranks that live are in their teardown, at the same place at both looks, and nobody waits in communication."""
    living = [rank for rank in analysis.case.observed if not analysis.case.activity(rank).end.gone]
    places = {rank: analysis.case.activity(rank).place for rank in living}
    details = {place.detail for place in places.values()}
    if analysis.hangs or not living or len(details) > 1 or not all(place.in_teardown for place in places.values()):
        return None
    if any(analysis.case.activity(rank).progress.moving is not False for rank in living):
        return None
    detail = details.pop()
    who = f"each of {named(living)}" if len(living) > 1 else named(living)
    steps = (
        "Let the parent read the queue before join(), or leave results in files: a process does not end before all is "
        "taken that it has put.",
        "If what is left in it is of no use, call `queue.cancel_join_thread()` in the ranks.",
        _OVER,
    )
    unread = detail == READ_BY_NOBODY
    return Claim(
        cause="undecided",
        culprits=(),
        confidence="possible",
        because=activity_facts(analysis, living),
        told=f"{who} {detail}{_held_up_by(analysis, living)}",
        missing=(f"who is to take it: the process that started {verb(living, 'it', 'them')}",) if unread else (),
        steps=steps if unread else (_OVER,),
    )


def _held_up_by(analysis: Analysis, living: list[int]) -> str:
    """Of one rank that waits for a thread of its own: where that one stands."""
    awaited = analysis.case.activity(living[0]).helpers.awaited
    if len(living) > 1 or awaited is None or awaited.frame is None:
        return ""
    return f": the one that keeps it is at {format_location(awaited.frame)}"
