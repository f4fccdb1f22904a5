"""Cycles of waits, and transfers that never meet: over groups or of sends and receives; of sizes that differ at both
ends."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.calls.programs import calls_of, read_programs
from stallwatch.diagnosis.calls.sequences import SequenceBreak, transfers_apart
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    departed_cause,
    group_name,
    is_first_use,
    left_alike,
    main_wait,
    named,
    waiting_facts,
)
from stallwatch.diagnosis.recorder import signature
from stallwatch.diagnosis.waits.graph import Strength, Wait
from stallwatch.diagnosis.waits.roots import Cycle, in_every_circle, is_shown
from stallwatch.model.summary import ANY, Call, Pending
from stallwatch.model.verdict import Cause, Confidence, Fact, Mismatch, Rejected

# A cycle of waits: over groups, or of sends and receives. Who started it, the order of calls tells.


_UNTOLD = "whom they wait for no recorder tells"


def cycle_of_waits(analysis: Analysis) -> Saying:
    """Ranks wait for each other in a cycle, over groups or in transfers; who broke the usual order, where calls tell
    it."""
    if not analysis.hangs:
        return None
    if not analysis.roots.cycles:
        return Rejected("group_order", "no cycle of waits")
    summaries = analysis.case.summaries
    outran = {rank for rank, summary in summaries.items() if summary.outran}
    cycles = [cycle for cycle in analysis.roots.cycles if outran.isdisjoint(cycle.ranks)]
    if not cycles:
        return Rejected("group_order", "what these ranks wait in first their rings have lost")
    cycle = max(cycles, key=lambda c: (len(c.ranks), c.nodes))
    if all(b.strength == Strength.SUPPOSED for point in cycle.points for b in analysis.graph.blockers[point]):
        return Rejected("p2p_unmatched", _UNTOLD)
    shared = in_every_circle(analysis.graph, cycle)
    inside = _who_left(analysis, cycle, shared)
    culprits = tuple(sorted({d.rank for d in inside}))
    confidence: Confidence = "likely"
    by_waits: tuple[int, ...] = ()
    facts: list[Fact] = []
    if culprits and len(culprits) < len(cycle.ranks):
        facts = [_departure_fact(analysis, d) for d in inside]
    if not facts and not is_shown(analysis.graph, cycle):
        return Rejected("p2p_unmatched", _UNTOLD)
    if not facts:
        inside, by_waits = [], _named_by_waits(analysis, cycle, shared)
        ends = _ends_of_the_one_not_posted(analysis, cycle) if by_waits == cycle.ranks else ()
        if ends:
            culprits, facts = _end_that_differs(analysis, cycle, ends)
            culprits = culprits if len(culprits) == 1 else ()
            confidence, by_waits = "likely" if culprits else "possible", ends
        elif _lacks_a_message(analysis, by_waits):
            culprits, facts = _end_that_differs(analysis, cycle, by_waits)
            confidence = "likely" if len(culprits) == 1 else "possible"
        else:
            # Who waits in what a group of its kind has ended is where the program is: another left that out.
            culprits = tuple(rank for rank in by_waits if not _does_as_sisters_do(analysis, rank))
            if len(culprits) > 2 and not _stand_alike(analysis, cycle):
                culprits = ()  # one of them went another way, and nothing tells which
            # Two that wait for each other's message are both at fault. Who started any other cycle, nothing told: one
            # that skipped a call stands in it as one that called in another order.
            proven = analysis.proven_stuck and analysis.whole_world_seen
            transfers = [not point.seq for point in cycle.points]
            if len(culprits) != 2 or culprits != cycle.ranks or not any(transfers):
                confidence = "possible"
            else:
                confidence = "certain" if proven and all(transfers) else "likely"
    stuck = [wait for wait in analysis.graph.waits if wait.point in cycle.points]
    ends_of_one = not inside and len(by_waits) == 2 and by_waits != cycle.ranks
    cause = "p2p_unmatched" if ends_of_one else _cause(analysis, cycle, inside)
    blocked = main_wait(analysis, culprits) if len(culprits) < len(cycle.ranks) else None
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


def _who_left(analysis: Analysis, cycle: Cycle, shared: tuple[int, ...]) -> list[SequenceBreak]:
    """Whose own order of calls, if anyone's, is what the cycle follows from. Of several those count without whom alone
    there would be none; and if these did not leave alike, one of them did not leave at all, and nothing tells which."""
    departures = [d for d in analysis.departures if d.rank in analysis.case.summaries]
    inside = [d for d in departures if d.rank in cycle.ranks] or departures
    if len({d.rank for d in inside}) < 2:
        return inside
    inside = [d for d in inside if d.rank in shared] or inside
    return inside if left_alike(inside) else []


def _named_by_waits(analysis: Analysis, cycle: Cycle, shared: tuple[int, ...]) -> tuple[int, ...]:
    """Whom the waits alone name: the one through whom each of its circles goes, or the two ends of a message; all of a
    cycle whose circles go through each of them alike, or share nobody. Of several among more, nobody."""
    if not shared or shared == cycle.ranks:
        return cycle.ranks
    return shared if len(shared) == 1 or (len(shared) == 2 and _share_a_message(analysis, shared)) else ()


def _stand_alike(analysis: Analysis, cycle: Cycle) -> bool:
    """Whether all of a cycle wait in one and the same call of their program: each as many places on for the next."""
    case, ways = analysis.case, set()
    for wait in analysis.graph.waits:
        if wait.point not in cycle.points:
            continue
        group, call = case.groups[wait.point.group], case.call(wait.rank, wait.pending)
        if not wait.pending.transfers or call is None:
            return False
        places = {rank: place for place, rank in enumerate(group.ranks)}
        ends = (case.ends(wait.rank, wait.pending, transfer) for transfer in wait.pending.transfers)
        own = places.get(wait.rank, 0)
        on = tuple(
            sorted((places.get(end, -1) - own) % len(places) for pair in ends for end in pair if end != wait.rank)
        )
        ways.add((wait.point.group, on, call.operation.partition(" ")[0], call.site))
    return len(ways) == 1


def _does_as_sisters_do(analysis: Analysis, rank: int) -> bool:
    """Whether another group of the kind of that in which a rank waits has ended the call in which it does: then that
    call is the program's, and not the order of the rank alone."""
    case = analysis.case
    for wait in analysis.graph.waits:
        seq, call = wait.point.seq, case.call(wait.rank, wait.pending)
        if wait.rank != rank or not seq or call is None:
            continue
        members = [one for sister in case.sisters(wait.point.group) for one in case.streams[sister.index].values()]
        ended = [one.call_at(seq) for one in members if one.stream.completed >= seq]
        if any(other is not None and other.operation == call.operation for other in ended):
            return True
    return False


def _share_a_message(analysis: Analysis, ranks: Sequence[int]) -> bool:
    """Whether one of two waits for the other's side of a message, which that one has not even posted."""
    graph = analysis.graph
    if any(graph.peers.get(rank) in ranks for rank in ranks):
        return True
    waits = [wait for wait in graph.waits if wait.rank in ranks and wait.pending.transfers]
    return any(b.rank in ranks and b.strength != Strength.QUEUED for w in waits for b in graph.blockers[w.point])


def _lacks_a_message(analysis: Analysis, ranks: Sequence[int]) -> bool:
    """Whether these are the two ends of a message that one of them waits for and the other has not posted, nor waits
    for one that the first has not: two that each wait for what the other posts later share no single message."""
    if len(ranks) != 2:
        return False
    waits = [wait for wait in analysis.graph.waits if wait.rank in ranks and wait.pending.transfers]
    lacking = {
        wait.rank
        for wait in waits
        for b in analysis.graph.blockers[wait.point]
        if b.rank in ranks and b.strength == Strength.RECORDED
    }
    return len(lacking) == 1


def _ends_of_the_one_not_posted(analysis: Analysis, cycle: Cycle) -> tuple[int, ...]:
    """Of a cycle of more than two through transfers alone, the two ends of the one message that its other end has not
    posted; () where there are several such, or none. All others wait for what is posted, and are only behind it."""
    waits = [wait for wait in analysis.graph.waits if wait.point in cycle.points]
    if len(cycle.ranks) < 3 or not all(wait.pending.transfers for wait in waits):
        return ()
    blockers = [(w.rank, b) for w in waits for b in analysis.graph.blockers[w.point] if b.rank in cycle.ranks]
    lacking = {(rank, b.rank) for rank, b in blockers if b.strength != Strength.QUEUED}
    return tuple(sorted(lacking.pop())) if len(lacking) == 1 else ()


def _end_that_differs(analysis: Analysis, cycle: Cycle, ends: tuple[int, ...]) -> tuple[tuple[int, ...], list[Fact]]:
    """Of the two ends of a message that is lacking, the one whose transfers are not those of its mates, at its place of
    other pipelines or around a ring. Where there are none, it may be either; where both go as their mates do,
    it was lost before what the rings hold."""
    group = next(p.group for p in cycle.points if not p.seq and p.rank in ends)
    compared = transfers_apart(analysis.case, ends, group)
    apart = [departure for departure in compared.values() if departure is not None]
    if len(compared) < len(ends) or len(apart) > 1:
        return ends, []
    return tuple(d.rank for d in apart), [_departure_fact(analysis, d, "others at its place") for d in apart]


def _common_site(analysis: Analysis, culprits: tuple[int, ...]) -> str:
    """The line that all of them stand in by their recorders, "" where there are several."""
    calls = [analysis.case.call(wait.rank, wait.pending) for wait in analysis.graph.waits if wait.rank in culprits]
    sites = {call.site if call else "" for call in calls}
    return sites.pop() if len(sites) == 1 else ""


def _cause(analysis: Analysis, cycle: Cycle, departures: list[SequenceBreak]) -> Cause:
    transfers = [point for point in cycle.points if not point.seq]
    if any(rank in analysis.graph.peers for rank in cycle.ranks):
        return "p2p_unmatched"  # one of its waits is a send or receive
    if departures:
        cause = departed_cause(analysis, departures[0])
        one_group = len({point.group for point in cycle.points}) == 1
        if cause != "group_order" or not one_group or not transfers:
            return cause
        called = (departures[0].found, *departures[0].expected)
        # One call for another, neither of them a transfer: that these close the circle is only where it led.
        return "p2p_unmatched" if any(signature.is_transfer(c.operation) for c in called) else "collective_mismatch"
    if len(transfers) == len(cycle.points):
        return "p2p_unmatched"
    collectives = {point.group for point in cycle.points if point.seq}
    return "group_order" if len(collectives) > 1 or not transfers else "p2p_unmatched"


def _departure_fact(analysis: Analysis, departure: SequenceBreak, who: str = "it had always") -> Fact:
    found = align.describe(departure.found)
    usual = align.describe(departure.expected[0]) if departure.expected else "something else"
    if found == usual:  # the same in another group
        group = analysis.case.groups[analysis.case.group_of[departure.rank, departure.found.stream]]
        found, usual = f"{found} in {group_name(analysis.case, group)}", "it in another group first"
    return Fact(
        f"rank {departure.rank} called {found} where {who} called {usual}",
        f"flight recorder of rank {departure.rank}",
    )


class _Pair(NamedTuple):
    wait: Wait  # the sender's
    source: int
    destination: int
    sent: int
    received: int


def sizes_differ(analysis: Analysis) -> Saying:
    """A send and its receive wait for each other with different numbers of elements."""
    pairs = _pairs(analysis) if analysis.hangs else []
    if not pairs:
        return None
    ends = Counter(rank for pair in pairs for rank in (pair.source, pair.destination))
    most = [rank for rank, count in ends.items() if count == max(ends.values())]
    if len(most) > 1:
        brought = {(p.source, p.sent) for p in pairs} | {(p.destination, p.received) for p in pairs}
        most = [rank for rank in most if any(r == rank and _is_odd(analysis, r, size) for r, size in brought)] or most
    culprits = tuple(sorted(most)) if len(most) <= 2 else ()
    first = next((pair for pair in pairs if {pair.source, pair.destination} & set(culprits)), pairs[0])
    group = analysis.case.groups[first.wait.point.group]
    found_is_sent = first.source in culprits or first.destination not in culprits
    expected, found = (first.received, first.sent) if found_is_sent else (first.sent, first.received)
    call = analysis.case.call(first.wait.rank, first.wait.pending)
    return Claim(
        cause="p2p_unmatched",
        culprits=culprits,
        confidence="likely" if len(culprits) == 1 else "possible",
        because=(
            *(
                Fact(
                    f"rank {pair.source} sends {pair.sent} elements to rank {pair.destination} in "
                    f"{group_name(analysis.case, group)}, which receives {pair.received}",
                    f"flight recorders of {named((pair.source, pair.destination))}",
                )
                for pair in pairs[:8]
            ),
            *waiting_facts(analysis),
        ),
        where="collective",
        mismatch=Mismatch("size", f"{expected} elements", f"{found} elements"),
        group=group.index,
        operation=call.operation if call and len(first.wait.pending.transfers) == 1 else None,
        site=call.site if call and first.source in culprits else "",
    )


def _pairs(analysis: Analysis) -> list[_Pair]:
    """Transfers that wait at both ends with different sizes."""
    case = analysis.case
    waiting: dict[tuple[int, int, int], list[tuple[Wait, bool, int]]] = {}
    for wait in analysis.graph.waits:
        for (source, destination), outgoing, elements in _transfers(analysis, wait.rank, wait.pending):
            if ANY in (source, destination):
                continue
            waiting.setdefault((wait.point.group, source, destination), []).append((wait, outgoing, elements))
    found = []
    by_anyone = _of_any_source(analysis, waiting)
    for (group, source, destination), ends in sorted(waiting.items()):
        sends = [(wait, elements) for wait, outgoing, elements in ends if outgoing and wait.rank == source]
        receives = [elements for wait, outgoing, elements in ends if not outgoing and wait.rank == destination]
        receives += by_anyone.get((group, source, destination), [])
        # The k-th pending send of a pair meets the k-th pending receive.
        for (wait, sent), received in zip(sends, receives, strict=False):
            if sent != received:
                found.append(_Pair(wait, source, destination, sent, received))
                break
    return found if case.summaries else []


def _transfers(analysis: Analysis, rank: int, pending: Pending) -> list[tuple[tuple[int, int], bool, int]]:
    return [
        (ends, transfer.outgoing, transfer.elements)
        for transfer in pending.transfers
        if transfer.elements is not None and transfer.outgoing is not None
        for ends in (analysis.case.ends(rank, pending, transfer),)
    ]


_Ends = Mapping[tuple[int, int, int], Sequence[tuple[Wait, bool, int]]]


def _of_any_source(analysis: Analysis, waiting: _Ends) -> dict[tuple[int, int, int], list[int]]:
    """Receives that take what anybody sends, where only one has a send pending to that rank: by group, that one and the
    rank."""
    senders: dict[tuple[int, int], set[int]] = {}
    for (group, source, destination), ends in waiting.items():
        if any(outgoing for _, outgoing, _ in ends):
            senders.setdefault((group, destination), set()).add(source)
    found: dict[tuple[int, int, int], list[int]] = {}
    for wait in analysis.graph.waits:
        senders_here = senders.get((wait.point.group, wait.rank), set())
        for (source, _), outgoing, elements in _transfers(analysis, wait.rank, wait.pending):
            if source == ANY and not outgoing and len(senders_here) == 1:
                found.setdefault((wait.point.group, min(senders_here), wait.rank), []).append(elements)
    return found


def _is_odd(analysis: Analysis, rank: int, elements: int) -> bool:
    """True when the rank's transfers at the line of that size had another one before, and no less often; hosts run
    ahead, so that it need not be the newest. Where it knows no size before, what its mates have there tells."""
    calls = _sized_transfers(analysis, rank)
    sites = {call.site for call in calls if _elements(call) == elements}
    sizes = [_elements(call) for call in calls if call.site in sites]
    counts = Counter(sizes)
    before = sizes[: sizes.index(elements)] if elements in counts else []
    if before:
        return any(counts[size] >= counts[elements] for size in before)
    # A size that goes through other lines of its own, too, may be that of its pipeline's data.
    elsewhere = {_elements(call) for call in calls if call.site not in sites}
    of_mates = {
        _elements(call)
        for mate in next((mates for mates in _mates(analysis) if rank in mates), ())
        if mate != rank
        for call in _sized_transfers(analysis, mate)
        if call.site in sites
    }
    return len(sites) == 1 and len(of_mates) == 1 and of_mates <= elsewhere


def _mates(analysis: Analysis) -> list[list[int]]:
    return read_programs(analysis.case, analysis.case.summaries).mates


def _sized_transfers(analysis: Analysis, rank: int) -> list[Call]:
    calls = calls_of(analysis.case, rank)
    return [call for call in calls if call.operation.startswith(("send ", "recv ")) and call.shape]


def _elements(call: Call) -> int:
    return prod(int(size) for size in re.findall(r"\d+", call.shape))
