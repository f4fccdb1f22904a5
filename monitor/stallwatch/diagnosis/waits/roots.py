"""Where chains of waits end: ranks that wait for nobody, and cycles; who of them has not entered; and the
counterfactual, whether the waits would end if these entered. Everything else collapses to these.

Points are nodes too: sixteen thousand ranks in one barrier that half of them lack are then as many edges, not
squared.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from stallwatch.diagnosis.frames.code_origin import Origin, code_origin
from stallwatch.diagnosis.frames.meaning import collective_name
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.untold import may_hide_transfers
from stallwatch.diagnosis.waits.graph import Blocker, Graph, Point, Strength

WaitNode = tuple[int, int]  # (rank, lane), or (_POINT, index)
_POINT = -1


class Cycle(msgspec.Struct, frozen=True):
    """Points whose waits lead back to themselves."""

    nodes: tuple[WaitNode, ...]
    points: tuple[Point, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks in it, ascending."""
        return tuple(sorted({rank for rank, _ in self.nodes}))


class Roots(msgspec.Struct, frozen=True):
    """Where all chains of waits end."""

    absent: tuple[WaitNode, ...]  # nodes that others wait for and that wait in nothing recorded
    cycles: tuple[Cycle, ...]
    circles: tuple[tuple[int, ...], ...]  # ranks that wait for each other in transfers that no recorder shows
    closed: tuple[Point, ...]  # every known member stands in this very operation, and it does not end
    strength: dict[int, Strength]  # of an absent rank: the surest of the waits for it


def find_roots(graph: Graph) -> Roots:
    """Given the graph of waits, return its sinks. Supposed waits count only where nothing surer explains a wait."""
    points = sorted(graph.blockers)
    successors = _successors(graph, points)
    components = _components(successors)
    component_of = {node: index for index, part in enumerate(components) for node in part}
    absent: list[WaitNode] = []
    cycles: list[Cycle] = []
    closed: list[Point] = []
    inner: list[Cycle] = []
    circles: list[tuple[int, ...]] = []
    for index, part in enumerate(components):
        inside = [points[node[1]] for node in part if node[0] == _POINT]
        nodes = tuple(node for node in part if node[0] != _POINT)
        ends = all(component_of[target] == index for node in part for target in successors[node])
        if inside and nodes:
            (cycles if ends else inner).append(Cycle(tuple(sorted(nodes)), tuple(sorted(inside))))
        elif not ends:
            continue
        elif inside:
            closed += inside
        elif len(nodes) > 1:
            circles.append(tuple(sorted({rank for rank, _ in nodes})))
        else:
            absent += nodes
    if not cycles and {rank for rank, _ in absent} <= {*graph.unrecorded, *graph.perhaps}:
        # Whom these wait for no recorder shows. A circle in which each waits for the next is a deadlock whatever else
        # its members wait for, and may be what they wait for.
        cycles = inner
    return Roots(
        absent=tuple(sorted(absent)),
        cycles=tuple(sorted(cycles, key=lambda cycle: cycle.nodes)),
        circles=tuple(sorted(circles)),
        closed=tuple(sorted(closed)),
        strength=_strengths((_relevant(graph.blockers[point]) for point in points), graph.peers.values()),
    )


def is_shown(graph: Graph, cycle: Cycle) -> bool:
    """Given a cycle, return True where it closes by waits that nobody outside of it can end: a receive from anybody
    may be answered by one that waits elsewhere."""
    number = {point: (_POINT, index) for index, point in enumerate(sorted(graph.blockers))}
    nodes = set(cycle.nodes)
    inside = {
        point
        for point in cycle.points
        if any(b.strength < Strength.SUPPOSED for b in graph.blockers[point])
        or all((b.rank, b.lane) in nodes for b in graph.blockers[point])
    }
    part = {*nodes, *(number[point] for point in inside)}
    left = _within(_successors(graph, sorted(graph.blockers)), part)
    return bool(_circles(_components(left)))


def in_every_circle(graph: Graph, cycle: Cycle) -> tuple[int, ...]:
    """Given a cycle, in which several circles may lie, return the ranks through which each of these goes; ascending.

    A stage that has gone on to the next collective, while both its neighbours stand in a transfer with it, is in every
    circle of the whole pipeline; who waits behind a neighbour is in one.
    """
    number = {point: (_POINT, index) for index, point in enumerate(sorted(graph.blockers))}
    part = {*cycle.nodes, *(number[point] for point in cycle.points)}
    successors = _within(_successors(graph, sorted(graph.blockers)), part)
    perhaps = _ranks_of(_shortest_circle(min(cycle.nodes), successors))
    while perhaps:
        rank = min(perhaps)
        left = _within(successors, {node for node in part if node[0] != rank})
        components = _components(left)
        circles = _circles(components)
        if not circles:
            return _on_all_ways(rank, perhaps, successors, [node for (node,) in reversed(components)])
        perhaps = (perhaps - {rank}) & _ranks_of(_shortest_circle(min(min(circles)), left))
    return ()


def _ranks_of(nodes: Iterable[WaitNode]) -> set[int]:
    return {rank for rank, _ in nodes if rank != _POINT}


def _on_all_ways(
    rank: int, perhaps: set[int], successors: Mapping[WaitNode, tuple[WaitNode, ...]], order: Sequence[WaitNode]
) -> tuple[int, ...]:
    """Given a rank without which there is no circle, and the other nodes so that each comes before those it leads to,
    return who lies on every way from that rank back to it: no way leads past its place in the order. (Rank by rank,
    without each in turn, a ring of a thousand took seconds.)"""
    place = {node: at for at, node in enumerate(order)}
    passed: Counter[int] = Counter()  # how many ways more lead past a place than past the one before
    for node, targets in successors.items():
        for target in targets:
            passed[place.get(node, -1) + 1] += 1
            passed[place.get(target, len(order))] -= 1
    ways = accumulate(passed[at] for at in range(len(order)))
    on_all = {node[0] for node, past in zip(order, ways, strict=True) if not past}
    several = Counter(node[0] for node in order)  # lanes: together they may be on every way
    for other in perhaps - on_all - {rank}:
        if several[other] > 1 and not _has_circle(successors, other):
            on_all.add(other)
    return tuple(sorted(perhaps & (on_all | {rank})))


def _has_circle(successors: Mapping[WaitNode, tuple[WaitNode, ...]], without: int) -> bool:
    left = _within(successors, {node for node in successors if node[0] != without})
    return bool(_circles(_components(left)))


def _shortest_circle(start: WaitNode, successors: Mapping[WaitNode, tuple[WaitNode, ...]]) -> list[WaitNode]:
    """Through a node that is in one: what is in every circle is in this one."""
    came_from: dict[WaitNode, WaitNode] = {}
    front = [start]
    while start not in came_from:
        after = []
        for node in front:
            for target in successors[node]:
                if target not in came_from:
                    came_from[target] = node
                    after.append(target)
        front = after
    circle = [start]
    while (node := came_from[circle[-1]]) != start:
        circle.append(node)
    return circle


def _within(
    successors: Mapping[WaitNode, tuple[WaitNode, ...]], part: set[WaitNode]
) -> dict[WaitNode, tuple[WaitNode, ...]]:
    return {node: tuple(target for target in successors[node] if target in part) for node in part}


def _successors(graph: Graph, points: Sequence[Point]) -> dict[WaitNode, tuple[WaitNode, ...]]:
    number = {point: (_POINT, index) for index, point in enumerate(points)}
    successors: dict[WaitNode, tuple[WaitNode, ...]] = {
        number[point]: tuple((blocker.rank, blocker.lane) for blocker in _relevant(graph.blockers[point]))
        for point in points
    }
    for wait in graph.waits:
        successors[wait.rank, wait.lane] = (number[wait.point],)
    for targets in list(successors.values()):
        for target in targets:
            successors.setdefault(target, ())
    _add_peers(graph, successors)
    return successors


def _relevant(blockers: tuple[Blocker, ...]) -> tuple[Blocker, ...]:
    sure = tuple(blocker for blocker in blockers if blocker.strength < Strength.SUPPOSED)
    return sure or blockers


def _add_peers(graph: Graph, successors: dict[WaitNode, tuple[WaitNode, ...]]) -> None:
    """Edges of transfers that only hooks tell of."""
    frontier = {wait.rank: (wait.rank, wait.lane) for wait in reversed(graph.waits)}
    for rank, peer in graph.peers.items():
        target = frontier.get(peer, (peer, 0))
        successors.setdefault(target, ())
        for node in {(rank, 0), *(node for node in successors if node[0] == rank)}:
            successors[node] = (*successors.get(node, ()), target)


def _strengths(edges: Iterable[tuple[Blocker, ...]], peers: Iterable[int]) -> dict[int, Strength]:
    strength: dict[int, Strength] = dict.fromkeys(peers, Strength.HOST)
    for blockers in edges:
        for blocker in blockers:
            strength[blocker.rank] = min(blocker.strength, strength.get(blocker.rank, blocker.strength))
    return strength


def _circles(components: Iterable[list[WaitNode]]) -> list[list[WaitNode]]:
    return [component for component in components if len(component) > 1]


def _components(successors: Mapping[WaitNode, tuple[WaitNode, ...]]) -> list[list[WaitNode]]:
    """Strongly connected components (Tarjan, without recursion: a chain may be thousands of ranks long)."""
    order: dict[WaitNode, int] = {}
    low: dict[WaitNode, int] = {}
    on_stack: set[WaitNode] = set()
    stack: list[WaitNode] = []
    result: list[list[WaitNode]] = []
    for start in sorted(successors):
        if start in order:
            continue
        work = [(start, iter(successors[start]))]
        order[start] = low[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, targets = work[-1]
            descended = False
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(successors[target])))
                    descended = True
                    break
                if target in on_stack:
                    low[node] = min(low[node], order[target])
            if descended:
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == order[node]:
                part: list[WaitNode] = []
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    part.append(member)
                    if member == node:
                        break
                result.append(sorted(part))
    return result


# The counterfactual: let these ranks enter what the others wait in, and see whether the recorded waits end.


_RankLane = tuple[int, int]  # (rank, lane)


def resolves(graph: Graph, culprits: Iterable[int]) -> bool:
    """Given ranks that are supposed to be the cause, return True when every wait ends once they enter.

    A point opens when all that it lacks have entered: culprits at once, waiting ranks when their own wait has ended.
    """
    entered = set(culprits)
    if not graph.waits or any(graph.unknown.values()):
        return False
    lacking: dict[Point, set[_RankLane]] = {}
    awaited_at: dict[_RankLane, list[Point]] = {}
    for point, blockers in graph.blockers.items():
        lacking[point] = {(blocker.rank, blocker.lane) for blocker in blockers if blocker.rank not in entered}
        for node in lacking[point]:
            awaited_at.setdefault(node, []).append(point)
    standing: dict[Point, list[_RankLane]] = {}
    for wait in graph.waits:
        standing.setdefault(wait.point, []).append((wait.rank, wait.lane))
    # A point that lacked nobody from the start does not open by anybody's entering.
    opened = sorted(point for point, blockers in graph.blockers.items() if blockers and not lacking[point])
    moved: set[_RankLane] = set()
    while opened:
        for node in standing.get(opened.pop(), ()):
            moved.add(node)
            for point in awaited_at.get(node, ()):
                lacking[point].discard(node)
                if not lacking[point]:
                    opened.append(point)
    return all((wait.rank, wait.lane) in moved for wait in graph.waits if wait.rank not in entered)


# Ranks that others wait for and that wait in nothing, by what recorders and stacks show together.


def goes_on(case: Case, rank: int) -> bool:
    """True when it was seen to move, or its calls end and it stands in the next, be it at the same line."""
    activity = case.activity(rank)
    calls_end = case.recorded(rank) and bool(case.summaries[rank].advanced)
    return bool(activity.progress.moving) or (calls_end and bool(activity.call.in_collective))


def absent_ranks(case: Case, graph: Graph, roots: Roots) -> list[int]:
    """Absent ranks; those that only a stack shows to be waiting count only where nobody else is absent."""
    stands, perhaps = set(graph.unrecorded), set(graph.perhaps)
    absent = {rank for rank, _ in roots.absent}
    if not graph.waits or stands or perhaps:
        absent |= {rank for rank in case.observed if rank not in graph.waiting and _elsewhere(case, rank)}
    # Who is gone enters nothing; that is rank_exited, or the consequence of what the living did. Who was cleared away
    # when the others had waited in vain did not enter while it lived.
    gone = {rank for rank in absent if case.activity(rank).end.gone} - case.cleared_away
    absent = {rank for rank in absent - gone if not _awaits_gpu(case, rank)}
    absent = {rank for rank in absent if not _may_wait_in_what_it_issued(case, graph, rank)}
    absent = {rank for rank in absent if not _waits_by_a_thread(case, rank)} or absent
    doubtful = absent - stands if graph.waits else set()
    if doubtful & perhaps and len([rank for rank in perhaps if case.recorded(rank)]) > 1:
        doubtful = set()  # each may wait for a message of another: who began it, is nowhere
    for found in (absent - stands - perhaps, doubtful):
        seen = {rank for rank in found if case.activity(rank).place.stack}
        if stands and seen:
            return sorted(seen)  # gloo records no transfers: without its stack a rank may stand in one
        hidden = [rank for rank in found - seen if _may_stand_in_transfer(case, rank)]
        in_transfers = [rank for rank in stands if not case.activity(rank).call.names_collective]
        if len(hidden) > 1 or (hidden and (in_transfers or perhaps or seen - perhaps)):
            return sorted(seen - perhaps)  # it, or whom it waits for: one of those that are seen elsewhere
        if found:
            return sorted(found)
    if graph.waits and not roots.closed:
        inside = sorted(rank for rank in absent & stands if not case.activity(rank).place.gpu_sync)
        # Who stands in communication waits for somebody: of several in transfers each for the next, perhaps, and one
        # alone for whoever is not seen to wait elsewhere. Who began it is nowhere. At its start a rank waits for all.
        waits = [rank for rank in inside if not case.activity(rank).place.in_store_or_init]
        transfers = [rank for rank in waits if case.activity(rank).call.is_transfer]
        others = set(case.world) - {wait.rank for wait in graph.waits} - set(inside)
        others -= {rank for rank in others & stands if all(_in_one_call(case, rank, other) for other in waits)}
        # Of whom no stack was read, it is not known whether it stands in one, too, or whether one waits for it.
        unseen = any(not case.activity(rank).known for rank in inside)
        return [] if len(transfers) > 1 or (waits and others) or (transfers and unseen) else inside
    return []


def _in_one_call(case: Case, rank: int, other: int) -> bool:
    """Both stand in the first collective of one group, which no recorder holds: neither waits for the other."""
    own, others = case.activity(rank), case.activity(other)
    if own.call.is_transfer or own.call.collective != others.call.collective:
        return False
    if None not in (own.call.members, others.call.members):
        return own.call.members == others.call.members
    return own.place.frame is not None and own.place.frame == others.place.frame


def _may_stand_in_transfer(case: Case, rank: int) -> bool:
    """Its dump is all that is known of it, and its back end records no transfers."""
    summary = case.summaries.get(rank)
    return summary is not None and may_hide_transfers(summary)


def _waits_by_a_thread(case: Case, rank: int) -> bool:
    """It waits for a thread of its own, which stands in communication: that one waits for somebody in its turn."""
    awaited = case.activity(rank).helpers.awaited
    return awaited is not None and collective_name(awaited.stack) is not None


def _may_wait_in_what_it_issued(case: Case, graph: Graph, rank: int) -> bool:
    """None of its recorders tells whether what it issued has ended, and it stands as in communication; or no stack says
    where it stands, and of those whom it needs for what it issued not all left a dump, or one waits in its own messages
    with which its newest ones end."""
    if not case.recorded(rank) or not case.untold.issuperset(case.summaries[rank].backends):
        return False
    if case.activity(rank).call.in_collective or rank in graph.perhaps:
        return True
    issued = case.summaries[rank].issued if not case.activity(rank).known else ()
    if issued and issued[-1].transfers:
        peers = {wait.rank for wait in graph.waits if wait.pending.transfers} - {rank}
        if peers & case.needed(rank, issued[-1]):
            return True
    return not all(case.recorded(other) for one in issued for other in case.needed(rank, one))


def _elsewhere(case: Case, rank: int) -> bool:
    """Seen outside of communication: for ranks that no recorder tells of."""
    return case.is_elsewhere(rank) and not case.activity(rank).progress.moving


def _awaits_gpu(case: Case, rank: int) -> bool:
    """Device synchronisation and nothing pending: some communication is never recorded, so nobody is accused.

    A thread that merely spins below a line of the job's own code is elsewhere, whatever it spins in.
    """
    activity = case.activity(rank)
    if not (case.recorded(rank) and activity.place.gpu_sync):
        return False
    return not activity.place.stack or code_origin(activity.place.stack[0].filename).origin is not Origin.JOB
