"""No recorder was read, and every rank stands in communication: who has left the loop that the others are in is seen by
the lines alone."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, named, waiting_facts
from stallwatch.diagnosis.job.leaving import have_left
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Fact


def claim(analysis: Analysis) -> Saying:
    """By stacks alone: fewer than half stand outside of the loop that all others are in."""
    case = analysis.case
    most = next(iter(analysis.by_stacks_alone.values()), [])
    left = tuple(sorted(set(case.observed) - set(most)))
    if not analysis.hangs or not left or len(most) <= len(left) or not have_left(case, left, most):
        return None
    return Claim(
        cause="data_exhausted",
        culprits=left,
        confidence="possible",
        because=(
            Fact(
                f"{named(left)} {verb(left, 'has', 'have')} left the loop that {named(most)} "
                f"{verb(most, 'is', 'are')} in",
                "py-spy and source",
            ),
            *waiting_facts(analysis),
            *activity_facts(analysis, left),
        ),
        missing=("what each rank called last: stallwatch.attach() lets the flight recorder be read",),
        operation=case.activity(most[0]).call.collective,
    )
