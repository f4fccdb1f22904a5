"""Which claim is told: the earlier fact wins. Precedence is a tuple; other explanations are listed with why not."""

from collections.abc import Callable

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, named, waiting_facts
from stallwatch.diagnosis.claims import (
    calls_without_recorder,
    collective_mismatch,
    gpu,
    init_missing,
    moving,
    not_entered,
    p2p_unmatched,
    rank_left,
    slow_rank,
    told_by_logs,
)
from stallwatch.model.verdict import Cause, Rejected

# Gone, stopped, GPU or fabric, raised, never at rendezvous, then the structure of waits, then who is elsewhere.
PRECEDENCE: tuple[Callable[[Analysis], Saying], ...] = (
    rank_left.exited,
    told_by_logs.ended,
    rank_left.stopped,
    gpu.gpu_fault,
    gpu.fabric_fault,
    gpu.kernel_stuck,
    rank_left.raised,
    told_by_logs.raised,
    init_missing.claim,
    told_by_logs.init,
    calls_without_recorder.roots_differ,
    collective_mismatch.claim,
    p2p_unmatched.sizes_differ,
    calls_without_recorder.mismatch,
    p2p_unmatched.cycle_of_waits,
    p2p_unmatched.unrecorded,
    init_missing.groups_differ,
    init_missing.group_not_made,
    not_entered.comm_stuck,
    not_entered.skipped,
    not_entered.behind_a_lock,
    moving.waiting,
    not_entered.claim,
    rank_left.left_the_loop,
    calls_without_recorder.launched_less,
    calls_without_recorder.called_elsewhere,
    told_by_logs.barrier,
    calls_without_recorder.watchdog,
    told_by_logs.communicator,
    told_by_logs.over,
    collective_mismatch.one_call_off,
    slow_rank.slow_rank,
    moving.healthy,
)


def decide(analysis: Analysis) -> tuple[Claim, tuple[Rejected, ...]]:
    """Given the analysis, return the claim to tell and what was rejected for it."""
    claims: list[Claim] = []
    rejected: list[Rejected] = []
    for explanation in PRECEDENCE:
        said = explanation(analysis)
        if isinstance(said, Rejected):
            rejected.append(said)
        elif said is not None:
            claims.append(said)
    if not claims:
        return _undecided_claim(analysis), tuple(rejected)
    first = claims[0]
    for other in claims[1:]:
        if other.cause != first.cause:
            rejected.append(Rejected(other.cause, _why_later(first, other)))
    return first, _once(rejected, first.cause)


def _why_later(first: Claim, other: Claim) -> str:
    if other.culprits and set(other.culprits) <= set(first.culprits):
        return f"true of {named(other.culprits)} as well, and follows from {first.cause}"
    return f"{first.cause} is the earlier fact"


def _once(rejected: list[Rejected], told: Cause) -> tuple[Rejected, ...]:
    seen: dict[Cause, Rejected] = {}
    for item in rejected:
        if item.cause != told:
            seen.setdefault(item.cause, item)
    return tuple(seen.values())


def _undecided_claim(analysis: Analysis) -> Claim:
    return told_by_logs.undecided(analysis) or Claim(
        "undecided", (), "possible", waiting_facts(analysis), missing=missing(analysis)
    )


def missing(analysis: Analysis) -> tuple[str, ...]:
    """Given an analysis that decides nothing, return what evidence would decide, each as a noun phrase: "a stack of
    rank 3"."""
    case = analysis.case
    texts: list[str] = []
    if case.unobserved:
        texts.append(f"any evidence of {named(case.unobserved)}")
    silent = [rank for rank in case.observed if not case.recorded(rank) and not case.activity(rank).end.gone]
    if silent:
        texts.append(f"a flight recorder dump of {named(silent)}")
    blind = [rank for rank in case.observed if not case.activity(rank).known]
    if blind:
        texts.append(f"a stack of {named(blind)}")
    if case.looks < 2:
        texts.append("a second look some seconds later")
    return tuple(texts)
