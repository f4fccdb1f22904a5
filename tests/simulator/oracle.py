"""Sees everything: says what is true of a case, and whether the evidence that is left can decide it.

Undecidable, in words: of the rank at fault nothing is left that shows the difference; or two ranks differ and neither a
third member nor an earlier step says which of them is right.
"""

from tests.simulator.engine import Engine
from tests.simulator.evidence import Seen
from tests.simulator.faults import Case


def is_decidable(case: Case, engine: Engine, seen: Seen) -> bool:
    truth = case.truth
    if truth.cause in ("rank_exited", "process_stopped"):
        return True  # the process table says it
    world = set(range(engine.program.mesh.world))
    waiting_seen = seen.dumps | seen.stacks
    if truth.cause == "healthy":
        return True
    if truth.cause == "comm_stuck":
        return world <= seen.dumps
    culprits = set(truth.culprits)
    if truth.cause == "not_entered" and not truth.needs_history:
        # One witness that waits, and the culprit's own stack or dump.
        return bool(culprits <= waiting_seen and (world - culprits) & seen.dumps) and _somebody_waits(engine, culprits)
    stand = _in_transfers(engine)
    if engine.program.backend == "gloo" and truth.cause == "p2p_unmatched":
        return world <= seen.stacks and truth.step > 0 and len(stand - culprits) <= 1
    if engine.program.backend == "gloo" and truth.cause == "data_exhausted" and world - culprits <= stand:
        # The end of a loop, or its last message lost on the way there: the second step is no habit yet.
        return world <= seen.dumps and truth.step > 1
    if engine.program.backend == "gloo" and truth.needs_history and culprits <= stand and len(stand) > 1:
        return False
    if not world <= seen.dumps:
        return False
    if truth.needs_history and truth.culprit_group == 2:
        return truth.step > 0 and seen.ring >= 400
    return seen.ring >= 400 or truth.step > 0


def _in_transfers(engine: Engine) -> set[int]:
    """gloo records neither transfers nor their peers: of ranks that stand in one, a stack shows only that they do. Of
    several, which waits for which, and so where the chain ends, is in nothing that could be gathered."""
    return {r.rank for r in engine.ranks.values() if r.blocked_at is not None and r.blocked_at.kind == "p2p"}


def _somebody_waits(engine: Engine, culprits: set[int]) -> bool:
    return any(r.blocked_at is not None for r in engine.ranks.values() if r.rank not in culprits)


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
