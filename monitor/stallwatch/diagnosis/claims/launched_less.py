"""By NCCL's own counts, where no recorder was read: every rank stands in communication, and a few have launched less
than the others, or something else. A rank whose stack stands still launches nothing more: the counts stand as well."""

import re

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, common_where, named, waiting_facts
from stallwatch.diagnosis.job.groups import launched_other, ranks_awaited
from stallwatch.model.verdict import Fact, Mismatch

_SOURCE = "NCCL RAS"
_MISSING = ("which call of each rank it is: stallwatch.attach() lets the flight recorder be read",)


def claim(analysis: Analysis) -> Saying:
    """Who has launched less than most of a communicator, and itself waits for nobody that launched less still."""
    case, lines = analysis.case, analysis.by_stacks_alone
    if not (analysis.hangs and lines):
        return None
    # Who stands at the line of most has come as far in the loop as they, and launches as much. Who stands at another
    # may have less only because its host waits for the GPU there.
    most_at = next(iter(lines.values()))
    behind = sorted(ranks_awaited(case.launches, most_at) if 2 * len(most_at) > len(case.observed) else ())
    if alike := bool(behind):
        compared = most_at
    else:
        behind, compared = sorted(ranks_awaited(case.launches, case.observed)), list(case.observed)
    if not behind or 2 * len(behind) >= len(compared):
        return _other(analysis)
    counts = next(each for each in case.launches if behind[0] in each)
    most = max(sum(number for _, number in counts[rank]) for rank in compared if rank in counts)
    mine = min(sum(number for _, number in counts[rank]) for rank in behind if rank in counts)
    has = "has" if len(behind) == 1 else "have"
    fact = Fact(
        f"{named(behind)} {has} launched {mine} collectives of a communicator in which others launched {most}", _SOURCE
    )
    return Claim(
        cause="not_entered",
        culprits=tuple(behind),
        confidence="likely" if alike or len(lines) == 1 else "possible",
        because=(fact, *waiting_facts(analysis), *activity_facts(analysis, behind)),
        where=common_where(analysis, behind),
        missing=_MISSING,
        told=f"{has} launched {mine} collectives, by NCCL's own count, where others launched {most}",
        steps=(
            f"Compare the path of {named(behind)} with another's: it left a call out. Look for a branch on the rank or "
            "its data, an early `continue`, an exception that is caught.",
        ),
    )


def _other(analysis: Analysis) -> Claim | None:
    other = launched_other(analysis.case.launches)
    if other is None:
        return None
    found, expected = _name(other.found), _name(other.expected)
    has = "has" if len(other.ranks) == 1 else "have"
    fact = Fact(f"{named(other.ranks)} {has} launched {found} once where the others launched {expected}", _SOURCE)
    return Claim(
        cause="collective_mismatch",
        culprits=other.ranks,
        confidence="likely",
        because=(fact, *waiting_facts(analysis), *activity_facts(analysis, other.ranks)),
        where="collective",
        mismatch=Mismatch("op", expected, found),
        operation=expected,
        missing=_MISSING,
    )


def _name(operation: str) -> str:
    """torch's name of what NCCL calls AllReduce."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).lower()
