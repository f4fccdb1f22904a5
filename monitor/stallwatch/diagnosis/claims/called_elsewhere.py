"""By stacks alone: every rank stands in a collective, and a few of them at another call than most."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, named, waiting_facts
from stallwatch.diagnosis.waits.unrecorded import in_transfer
from stallwatch.model.verdict import Fact, Mismatch


def claim(analysis: Analysis) -> Saying:
    """No recorder was read: who stands in another collective than most, or at another line, has called something else,
    where there are no more than these two places."""
    case = analysis.case
    most, few = [*analysis.by_stacks_alone.values(), [], []][:2]
    if not analysis.hangs or not few or len(analysis.by_stacks_alone) > 2 or len(most) <= len(few):
        return None
    calls = [{case.activity(rank).call.collective for rank in ranks} for ranks in (most, few)]
    found_in = [case.activity(rank) for rank in case.observed]
    # Stages of a pipeline stand at lines of their own by design; who makes a group waits for whoever comes.
    if any(activity.place.in_store_or_init or in_transfer(activity) for activity in found_in):
        return None
    if any(len(names) > 1 or None in names for names in calls):
        return None
    (expected,), (found,) = calls
    assert expected is not None
    assert found is not None
    stands = "stands" if len(few) == 1 else "stand"
    return Claim(
        cause="collective_mismatch",
        culprits=tuple(sorted(few)),
        confidence="possible",
        because=(
            Fact(f"{named(few)} {stands} in {found} at another line than {named(most)}, in {expected}", "py-spy"),
            *waiting_facts(analysis),
            *activity_facts(analysis, few),
        ),
        where="collective",
        mismatch=Mismatch("op", expected, found) if expected != found else None,
        operation=expected,
        missing=("what each rank called last: stallwatch.attach() lets the flight recorder be read",),
        ends_by_itself="first_use",  # of another group, which makes its members wait for each other
    )
