"""Most ranks stand where a process group is made, and wait there for the few that went on to the next collective.

NCCL makes a group's communicator at its first collective, which its recorder holds once that is made: torch
`ProcessGroupNCCL::collective` calls `initNCCLComm` before `FlightRecorder::recordWithResetEnabled`."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, main_wait, named, operation_of, waiting_facts
from stallwatch.diagnosis.frames.code_origin import code_origin, function
from stallwatch.diagnosis.job.case import Case
from stallwatch.model.verdict import Fact, Mismatch

# What every rank of the job must call, members or not, and not the start of the job itself.
_MAKES = frozenset({"new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group", "init_device_mesh"})


def claim(analysis: Analysis) -> Saying:
    case = analysis.case
    waits = tuple(sorted({wait.rank for wait in analysis.graph.waits}))
    if not analysis.hangs or not waits or case.unobserved or not analysis.whole_world_seen:
        return None
    inside = list(analysis.absent)
    calls = {_makes(case, rank) for rank in inside}
    is_made = calls != {""}
    calls = calls if is_made else {_connects(case, rank) for rank in inside}
    if len(calls) != 1 or "" in calls or {*waits, *inside} != set(case.world) or len(waits) >= len(inside):
        return None
    if any(case.activity(rank).moving is not False for rank in inside):
        return None
    call, wait = calls.pop(), main_wait(analysis, inside)
    if wait is None:
        return None
    return Claim(
        cause="collective_mismatch",
        culprits=waits,
        confidence="likely" if is_made else "possible",  # a group of theirs may fail to connect as well
        because=(
            Fact(
                f"{named(inside)} stand in {call}, and wait there for the ranks that the group is made of"
                if is_made
                else f"{named(inside)} stand in {call}, and no recorder of theirs holds it: so does a group's first "
                "call, until all its members are connected",
                "py-spy",
            ),
            *waiting_facts(analysis),
            *activity_facts(analysis, inside),
        ),
        where="collective",
        mismatch=Mismatch("op", call, operation_of(analysis, wait)),
        group=wait.point.group,
        operation=call,
        ends_by_itself="first_use",  # members connect while the others go on, as a rule for a moment
        steps=(
            f"Let every rank of the job call {call if is_made else 'new_group'}, in the same order and with the "
            f"same ranks, members or not: {named(inside)} stand in "
            f"{'it' if is_made else f'the first {call} of a group'}{_at(case, inside)}.",
        ),
    )


def _at(case: Case, inside: list[int]) -> str:
    frame = case.activity(inside[0]).frame
    return f" at {frame.file}:{frame.line} in {frame.function}" if frame else ""


def _makes(case: Case, rank: int) -> str:
    """The call that makes a group, in which the rank stands; "" where it stands in none."""
    activity = case.activity(rank)
    if activity.where != "init":
        return ""
    torch = [frame for frame in activity.stack if code_origin(frame.filename).module.startswith("torch.distributed")]
    return next((name for frame in reversed(torch) if (name := function(frame.name)) in _MAKES), "")


def _connects(case: Case, rank: int) -> str:
    """The collective in which the rank stands, by its stack, that NCCL's recorder does not hold; "" where none is."""
    activity = case.activity(rank)
    by_nccl = any(recorder.backend == "nccl" and recorder.operations for recorder in case.evidence[rank].recorders)
    return (activity.collective or "") if activity.where == "collective" and activity.in_collective and by_nccl else ""
