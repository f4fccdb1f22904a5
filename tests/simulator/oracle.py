"""Sees everything: says what is true of a case, and whether the evidence that is left can decide it.

Undecidable, in words: of the rank at fault nothing is left that shows the difference; or two ranks differ and neither a
third member nor an earlier step says which of them is right; or the chain of waits that leads to it runs through a rank
of which nothing is left; or gloo, which names no members and records no transfers, shows nothing that ties it to what
the others wait in. What a verdict says is not looked at here.
"""

from itertools import pairwise

from tests.simulator.engine import Engine
from tests.simulator.evidence import Seen
from tests.simulator.faults import EXTRA, Case
from tests.simulator.recording import Style


def is_decidable(case: Case, engine: Engine, seen: Seen, style: Style | None = None) -> bool:
    truth, style = case.truth, style or Style()
    if set(truth.culprits) & seen.lost or seen.outran:
        return False
    if truth.cause in ("rank_exited", "process_stopped"):
        return True  # the process table says it
    transfers = any(call.kind == "p2p" for calls in engine.program.calls.values() for call in calls)
    if style.captured or (style.anonymous and transfers):
        return False  # what the others wait in, or for whom, is recorded nowhere
    if truth.needs_history and seen.since and seen.since >= truth.step:
        return False
    world = set(range(engine.program.mesh.world))
    waiting_seen = seen.dumps | seen.stacks
    if truth.cause == "healthy":
        return world <= seen.dumps  # stacks alone may show the same line of the loop's next round
    if truth.cause == "comm_stuck":
        reached = truth.only_where_all_entered
        return world <= seen.dumps and (engine.program.backend == "nccl" or _shares_out(engine, reached))
    culprits = set(truth.culprits)
    if truth.cause == "not_entered" and not truth.needs_history:
        # One witness that waits, and the culprit's own stack or dump.
        if engine.program.backend == "gloo" and _in_transfers(engine) and not culprits <= seen.stacks:
            return False  # it may stand in a transfer itself, for a message that was lost
        spins = engine.program.backend == "nccl" and _in_a_busy_loop(engine, culprits)
        return culprits <= (seen.dumps if spins else waiting_seen) and _chain_is_seen(engine, culprits, seen)
    if case.fault.startswith("batch_") and engine.program.backend == "gloo":
        return world <= seen.dumps & seen.stacks  # that nobody can be named; their transfers are recorded nowhere
    stand = _in_transfers(engine)
    if engine.program.backend == "gloo" and truth.cause == "p2p_unmatched":
        return world <= seen.stacks and truth.step > 0 and len(stand - culprits) <= 1
    if engine.program.backend == "gloo" and truth.cause == "data_exhausted" and world - culprits <= stand:
        # The end of a loop, or its last message lost on the way there. In a first step no line was called twice, and
        # one line called twice before a barrier is a set-up as likely as a loop: neither shows that there is one.
        looped = truth.step > 1 and all(engine.ranks[rank].issued_collectives > 3 for rank in culprits)
        return world <= seen.dumps and looped
    if engine.program.backend == "gloo" and truth.needs_history and culprits <= stand and len(stand) > 1:
        return False
    if not world <= seen.dumps:
        return False
    if engine.program.backend == "gloo" and truth.group and _never_used(engine, culprits, truth.group):
        return False  # nothing says that it is a member of what the others wait in
    if truth.needs_history and truth.culprit_group == 2:
        alone = case.fault == "extra" and len(world) == 2 and _ends_a_first_round(case)
        return truth.step > 0 and seen.ring >= 400 and not alone
    return seen.ring >= 400 or truth.step > 0


def _ends_a_first_round(case: Case) -> bool:
    """A call of its own where the group goes round for the first time: what was due there has never followed what came
    before, so that the other member may have left out the last call of a round. Where there are more ranks than these
    two, their groups of that kind, or the others of their stage, tell."""
    (culprit,) = case.truth.culprits
    calls = case.program.calls[culprit]
    at = next(place for place, call in enumerate(calls) if call.site == EXTRA)
    sites = [call.site for call in calls if call.kind == "collective" and call.group == calls[at].group]
    place = sites.index(EXTRA)
    around = list(pairwise(sites[max(place - 1, 0) : place] + sites[place + 1 : place + 2]))
    return not set(around) & set(pairwise(sites[:place]))


def _in_a_busy_loop(engine: Engine, culprits: set[int]) -> bool:
    """On the CPU below a line of its own: without a dump of now, as one that waits there for its GPU."""
    stands = [engine.ranks[rank].blocked_at for rank in culprits]
    return any(call is not None and call.where == "busy_loop" for call in stands)


def _in_transfers(engine: Engine) -> set[int]:
    """gloo records neither transfers nor their peers: of ranks that stand in one, a stack shows only that they do. Of
    several, which waits for which, and so where the chain ends, is in nothing that could be gathered."""
    return {r.rank for r in engine.ranks.values() if r.blocked_at is not None and r.blocked_at.kind == "p2p"}


def _shares_out(engine: Engine, reached: tuple[str, int] | None) -> bool:
    """gloo's dumps name no members: that all have entered shows only where groups of one kind make up the world."""
    name = reached[0] if reached else ""
    groups = engine.program.mesh.groups
    kind = next(group.description for group in groups if group.name == name).rstrip("0123456789")
    alike = [group for group in groups if group.description.rstrip("0123456789") == kind]
    used = all(engine.ranks[rank].count_of_group[group.name] for group in alike for rank in group.ranks)
    return name == "0" or (used and sum(len(group.ranks) for group in alike) == engine.program.mesh.world)


def _never_used(engine: Engine, culprits: set[int], group: str) -> bool:
    """gloo's dumps name no members: who has not called anything in a group, but for the world's, may not be in it."""
    return group != "0" and any(not engine.ranks[rank].count_of_group[group] for rank in culprits)


def lacks(engine: Engine, rank: int) -> dict[str, set[int]]:
    """Whom a rank waits for, by group: members that have not entered what it stands in, or have entered another thing
    before; the other end of a transfer."""
    found: dict[str, set[int]] = {}
    for issued in engine.ranks[rank].issued:
        group = issued.call.group
        if issued.completed or group is None:
            continue
        if issued.pairs:
            missing = {peer for _, peer, _ in issued.pairs}
        else:
            inside = engine.collectives.get((group.name, issued.sequence), {})
            missing = {member for member in group.ranks if member not in inside or not inside[member].started}
        found.setdefault(group.name, set()).update(missing - {rank})
    return found


def _chain_is_seen(engine: Engine, culprits: set[int], seen: Seen) -> bool:
    """From a rank that is seen to wait, rank by rank that is seen to wait, to the one at fault. Of one that stands in
    a transfer of gloo's its stack alone shows that it waits."""
    gloo = engine.program.backend == "gloo"
    blind = set(engine.ranks) - seen.dumps - seen.stacks - culprits
    unshown = _in_transfers(engine) - seen.stacks if gloo else set()
    for start in sorted(seen.dumps - culprits - unshown):
        reached, stack = {start}, [start]
        while stack:
            for name, missing in lacks(engine, stack.pop()).items():
                for other in missing - reached:
                    reached.add(other)
                    tied = not gloo or name == "0" or other in seen.dumps or not blind
                    if other in culprits and tied:
                        return True
                    if other in seen.dumps:
                        stack.append(other)
    return False


def fits(engine: Engine, rank: int, cause: str) -> bool:
    """True when the standing picture is, by the definition of the cause, a case of it with this rank at fault."""
    own = engine.ranks[rank]
    calls = {(i.call.group.name, i.sequence): i.call for i in own.issued if i.call.group and not i.pairs}
    if cause == "collective_mismatch":
        return any(
            other.rank != rank
            and i.call.group is not None
            and not i.pairs
            and (mine := calls.get((i.call.group.name, i.sequence))) is not None
            and (mine.operation, mine.numel, mine.dtype, mine.members, mine.site)
            != (i.call.operation, i.call.numel, i.call.dtype, i.call.members, i.call.site)
            for other in engine.ranks.values()
            for i in other.issued
        )
    if cause == "not_entered":
        return any(rank in missing for r in engine.ranks if r != rank for missing in lacks(engine, r).values())
    if cause == "data_exhausted":
        return bool(own.issued) and own.issued[-1].call.operation == "barrier"
    if cause == "p2p_unmatched" and engine.program.backend == "gloo":
        return rank in _in_transfers(engine)
    if cause == "p2p_unmatched":
        return any(i.pairs and not i.completed for r in engine.ranks.values() for i in r.issued)
    if cause == "group_order":
        return own.ended == "" and bool(lacks(engine, rank))
    return True


def is_whole_cycle(case: Case, engine: Engine, cause: str, culprits: tuple[int, ...]) -> bool:
    """Two ranks that do wait for each other, the one at fault among them, where neither an earlier step nor a third
    member tells who of them began it: both are the answer then, and of a longer circle nobody. Of gloo's transfers,
    whose peers are recorded nowhere, the only two ranks that stand in any: two that wait for each other look the same
    as two that wait for a third."""
    if engine.program.backend == "gloo" and cause == "p2p_unmatched" and len(culprits) == 2:
        return case.truth.cause == cause and set(culprits) == _in_transfers(engine)
    if cause not in ("group_order", "p2p_unmatched") or (culprits and not set(case.truth.culprits) < set(culprits)):
        return False
    waits = {rank: set().union(*lacks(engine, rank).values()) for rank in engine.ranks}
    named = set(culprits) or _circle_through(waits, case.truth.culprits)
    inside = {rank: waits[rank] & named for rank in named}
    closed = bool(named) and all(inside.values()) and set().union(*inside.values()) == named
    return closed and len(culprits) <= 2 and (case.truth.step == 0 or case.truth.culprit_group == 2)


def _circle_through(waits: dict[int, set[int]], ranks: tuple[int, ...]) -> set[int]:
    """Whoever waits, by others, for one of these ranks, and for whom that one waits."""
    found: set[int] = set()
    for rank in ranks:
        ahead = _reached(waits, rank)
        found |= {other for other in ahead if rank in _reached(waits, other)} if rank in ahead else set()
    return found


def _reached(waits: dict[int, set[int]], start: int) -> set[int]:
    reached, stack = set[int](), [start]
    while stack:
        for other in waits[stack.pop()] - reached:
            reached.add(other)
            stack.append(other)
    return reached


def is_right(case: Case, engine: Engine, cause: str, culprits: tuple[int, ...], moved: set[int]) -> bool:
    """The truth, or another name of the same picture. In a job that moves, a wait for those that alone moved; and where
    not every rank moved between the looks, nothing proves that it is healthy."""
    if case.most_moves is not None and cause == "undecided":
        return moved != set(engine.ranks)
    if case.most_moves is not None and cause == "waiting":
        return set(culprits) <= moved
    if (cause, culprits) == (case.truth.cause, case.truth.culprits) or is_whole_cycle(case, engine, cause, culprits):
        return True
    accepted = (cause, culprits) in case.truth.accept
    return accepted and (len(culprits) != 1 or fits(engine, culprits[0], cause))


def hides(case: Case, engine: Engine) -> bool:
    """A fault that stopped nobody (a swap that pairs up, a skip of the last call): nothing to find."""
    if case.most_moves is not None:
        return False
    if not engine.hung():
        return True
    reached = case.truth.only_where_all_entered
    if reached is None:
        return False
    name, number = reached
    group = next(g for g in engine.program.mesh.groups if g.name == name)
    return any(engine.ranks[r].count_of_group[name] < number for r in group.ranks)
