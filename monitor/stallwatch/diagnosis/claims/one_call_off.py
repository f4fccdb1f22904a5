"""One member's calls in a group are one off: a call too many or too few has paired with another one of its peers'. The
hang comes later, elsewhere or never, and the numbers are wrong from there on."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.calls.drift import one_off
from stallwatch.diagnosis.calls.programs import calls_of
from stallwatch.diagnosis.calls.shifted_calls import ShiftedCalls
from stallwatch.diagnosis.came_through import came_through_facts, uncompared
from stallwatch.diagnosis.claim import Claim, Saying, group_name, operation_of, waiting_facts
from stallwatch.model.summary import Call
from stallwatch.model.verdict import Fact, Mismatch


def claim(analysis: Analysis) -> Saying:
    """Somebody waits, and one member alone had made a call of its own, or left one out."""
    shifted = analysis.shifted
    if shifted is None:
        return None
    if shifted.instead is not None:
        return _one_call_fewer(analysis, shifted, shifted.instead)
    return _one_off(analysis, shifted)


def _one_call_fewer(analysis: Analysis, shifted: ShiftedCalls, instead: Call) -> Claim:
    departure, rank = shifted.departure, shifted.departure.rank
    due = departure.expected[0]
    name = group_name(analysis.case, analysis.case.groups[shifted.group])
    return Claim(
        cause="collective_mismatch",
        culprits=(rank,),
        confidence="likely",
        because=(
            Fact(
                f"rank {rank} called {align.describe(departure.found)} where its peers call {align.describe(due)}: it "
                "left that out",
                f"flight recorder of rank {rank}",
            ),
            Fact(
                f"under #{shifted.seq} of {name} it called {align.describe(instead)}, the others {align.describe(due)}",
                "flight recorders",
            ),
            *came_through_facts(analysis),
            *waiting_facts(analysis),
        ),
        missing=uncompared(analysis),
        where="collective",
        mismatch=Mismatch("count", f"one {due.operation} more", "none"),
        group=shifted.group,
        operation=due.operation,
        seq=shifted.seq,
        site=instead.site,
    )


def _one_off(analysis: Analysis, shifted: ShiftedCalls) -> Claim:
    departure, rank = shifted.departure, shifted.departure.rank
    name = group_name(analysis.case, analysis.case.groups[shifted.group])
    usual, found = departure.expected[0], departure.found
    is_new = found not in calls_of(analysis.case, rank)[: departure.place]
    counts = ("none", f"one {found.operation} more") if is_new else (f"one {usual.operation} more", "none")
    return Claim(
        cause="collective_mismatch",
        culprits=(rank,),
        confidence="likely",
        because=(
            Fact(
                f"rank {rank} called {align.describe(found)} as #{departure.seq} of {name} where "
                f"it had always called {align.describe(usual)}: that paired, and from there on its calls are one off",
                f"flight recorder of rank {rank}",
            ),
            *_met_later(analysis, shifted),
            *came_through_facts(analysis),
            *waiting_facts(analysis),
        ),
        missing=uncompared(analysis),
        where="collective",
        mismatch=Mismatch("count", *counts),
        group=shifted.group,
        operation=_operation(analysis, shifted),
        seq=shifted.seq,
        site=found.site,
    )


def _met_later(analysis: Analysis, shifted: ShiftedCalls) -> tuple[Fact, ...]:
    """Where the members' calls differ at last, if they do."""
    divergence = analysis.divergence
    if divergence is None:
        return ()
    return (
        Fact(
            f"under #{shifted.seq} members then called {align.describe(divergence.found)} and "
            f"{align.describe(divergence.expected)}",
            "flight recorders",
        ),
    )


def _operation(analysis: Analysis, shifted: ShiftedCalls) -> str:
    """What the others wait in."""
    if analysis.divergence is not None:
        return analysis.divergence.expected.operation
    place = (shifted.group, shifted.seq)
    return operation_of(analysis, next(wait for wait in analysis.graph.waits if wait.point[:2] == place))


def before_the_hang(analysis: Analysis) -> Saying:
    """Nobody waits yet, but one rank has made a call more or fewer than the others."""
    if analysis.hangs:
        return None
    for group in analysis.case.groups:
        for drift in one_off(analysis.case, group.index):
            few = drift.shift > 0
            call = analysis.case.streams[group.index][drift.culprits[0]].call_at(drift.seq)
            return Claim(
                cause="collective_mismatch",
                culprits=drift.culprits,
                confidence="likely",
                because=(Fact(drift.reason, "flight recorders"),),
                where="collective",
                mismatch=Mismatch("count", "one call more" if few else "none", "none" if few else "one call more"),
                group=group.index,
                operation=call.operation if call else None,
                seq=drift.seq,
                site=call.site if call and not few else "",
            )
    return None
