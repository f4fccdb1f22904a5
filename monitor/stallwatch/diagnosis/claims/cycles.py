"""A cycle of waits: over groups, or of sends and receives. Who started it, the order of calls tells."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.calls.sequences import Departure
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    departed_cause,
    group_name,
    is_first_use,
    main_wait,
    named,
    waiting_facts,
)
from stallwatch.diagnosis.waits.graph import Strength
from stallwatch.diagnosis.waits.roots import Cycle
from stallwatch.model.verdict import Cause, Confidence, Fact, Rejected


def claim(analysis: Analysis) -> Saying:
    if not analysis.hangs:
        return None
    if not analysis.roots.cycles:
        return Rejected("group_order", "no cycle of waits")
    cycle = max(analysis.roots.cycles, key=lambda c: (len(c.ranks), c.nodes))
    if all(b.strength == Strength.SUPPOSED for point in cycle.points for b in analysis.graph.blockers[point]):
        return Rejected("p2p_unmatched", "whom they wait for no recorder tells")
    ranks = set(cycle.ranks)
    departures = [d for d in analysis.departures if d.rank in analysis.case.summaries]
    inside = [d for d in departures if d.rank in ranks] or departures
    culprits = tuple(sorted({d.rank for d in inside}))
    confidence: Confidence = "likely"
    facts: list[Fact] = []
    if culprits and len(culprits) < len(ranks):
        facts = [_departure_fact(analysis, d) for d in inside]
    if not facts:
        culprits = cycle.ranks
        # A message has two ends, and two that wait for each other's are both. Who started any other cycle, nothing
        # told: one that skipped a call stands in it as one that called in another order.
        proven = analysis.proven_stuck and analysis.whole_world_seen
        transfers = [not point.seq for point in cycle.points]
        if len(culprits) > 2 or not any(transfers):
            confidence = "possible"
        else:
            confidence = "certain" if proven and all(transfers) else "likely"
    stuck = [wait for wait in analysis.graph.waits if wait.point in cycle.points]
    cause = _cause(analysis, cycle, inside if facts else [])
    blocked = main_wait(analysis, culprits) if len(culprits) < len(ranks) else None
    point = blocked.point if blocked is not None else cycle.points[0]
    first = next(wait for wait in analysis.graph.waits if wait.point == point)
    call = analysis.case.call(first.rank, first.pending)
    names = sorted({group_name(analysis.case, analysis.case.groups[p.group]) for p in cycle.points})
    return Claim(
        cause=cause,
        culprits=culprits,
        confidence=confidence,
        because=(
            Fact(f"{named(cycle.ranks)} wait for each other in a cycle over {', '.join(names)}", "flight recorders"),
            *facts,
            *waiting_facts(analysis),
        ),
        where="collective",
        group=point.group,
        operation=call.operation if call else None,
        seq=point.seq or None,
        site=_common_site(analysis, culprits),
        ends_by_itself=None if facts or not is_first_use(analysis, stuck) else "first_use",
    )


def _common_site(analysis: Analysis, culprits: tuple[int, ...]) -> str:
    """The line that all of them stand in by their recorders, "" where there are several."""
    calls = [analysis.case.call(wait.rank, wait.pending) for wait in analysis.graph.waits if wait.rank in culprits]
    sites = {call.site if call else "" for call in calls}
    return sites.pop() if len(sites) == 1 else ""


def _cause(analysis: Analysis, cycle: Cycle, departures: list[Departure]) -> Cause:
    transfers = [point for point in cycle.points if not point.seq]
    if any(rank in analysis.graph.peers for rank in cycle.ranks):
        return "p2p_unmatched"  # one of its waits is a send or receive
    if departures:
        cause = departed_cause(analysis, departures[0])
        one_group = len({point.group for point in cycle.points}) == 1
        return "p2p_unmatched" if cause == "group_order" and one_group and transfers else cause
    if len(transfers) == len(cycle.points):
        return "p2p_unmatched"
    collectives = {point.group for point in cycle.points if point.seq}
    return "group_order" if len(collectives) > 1 or not transfers else "p2p_unmatched"


def _departure_fact(analysis: Analysis, departure: Departure) -> Fact:
    found = align.describe(departure.found)
    usual = align.describe(departure.expected[0]) if departure.expected else "something else"
    if found == usual:  # the same in another group
        group = analysis.case.groups[analysis.case.group_of[departure.rank, departure.found.stream]]
        found, usual = f"{found} in {group_name(analysis.case, group)}", "it in another group first"
    return Fact(
        f"rank {departure.rank} called {found} where it had always called {usual}",
        f"flight recorder of rank {departure.rank}",
    )
