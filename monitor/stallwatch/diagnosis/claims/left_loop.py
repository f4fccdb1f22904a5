"""No recorder was read, and every rank stands in communication: who has left the loop that the others are in is seen by
the lines alone."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, named, waiting_facts
from stallwatch.diagnosis.job.leaving import have_left
from stallwatch.model.verdict import Fact


def claim(analysis: Analysis) -> Saying:
    case = analysis.case
    stands = set(analysis.graph.unrecorded)
    if not analysis.hangs or analysis.graph.waits or case.unobserved or stands != set(case.observed):
        return None
    if any(case.recorded(rank) or case.activity(rank).moving is not False for rank in case.observed):
        return None
    lines: dict[tuple[str, int], list[int]] = {}
    for rank in case.observed:
        frame = case.activity(rank).frame
        if frame is None:
            return None
        lines.setdefault((frame.file, frame.line), []).append(rank)
    most = max(lines.values(), key=len)
    left = tuple(sorted(stands - set(most)))
    if not left or 2 * len(most) <= len(stands) or not have_left(case, left, most):
        return None
    return Claim(
        cause="data_exhausted",
        culprits=left,
        confidence="possible",
        because=(
            Fact(
                f"{named(left)} {'has' if len(left) == 1 else 'have'} left the loop that {named(most)} "
                f"{'is' if len(most) == 1 else 'are'} in",
                "py-spy and source",
            ),
            *waiting_facts(analysis),
            *activity_facts(analysis, left),
        ),
        missing=("what each rank called last: stallwatch.attach() lets the flight recorder be read",),
        operation=case.activity(most[0]).collective,
    )
