"""From evidence to verdicts: reduce each rank, build the case, analyze it, ask each explanation, tell the one that is
first in PRECEDENCE, in words; the others are listed with why not."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from stallwatch.diagnosis.activity import RankActivity, read_activity
from stallwatch.diagnosis.activity.rank_activity import with_transfer
from stallwatch.diagnosis.activity.training_threads import training_entry
from stallwatch.diagnosis.analysis import Analysis, analyze_job
from stallwatch.diagnosis.called_lines import called_at, lines_of
from stallwatch.diagnosis.claim import Claim, Saying, common_where, doubtful, named, waiting_facts
from stallwatch.diagnosis.claims import (
    at_their_end,
    behind_a_lock,
    calls_without_recorder,
    collective_mismatch,
    gpu,
    init_missing,
    left_the_loop,
    logged_calls,
    moving,
    not_entered,
    one_call_off,
    p2p_unmatched,
    process_stopped,
    processes_apart,
    rank_exited,
    rank_raised,
    rpc_answers,
    slow_rank,
    told_by_logs,
    transfers_unrecorded,
    unrecorded_barrier,
)
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.pace import most_looks
from stallwatch.diagnosis.logs import of_this_life, read_logs
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.diagnosis.report.sentences import summary
from stallwatch.diagnosis.report.steps import MAXIMUM_STEPS, next_steps
from stallwatch.diagnosis.report.text import SentenceExtras
from stallwatch.diagnosis.step import once, with_steps
from stallwatch.diagnosis.waits.graph import Wait
from stallwatch.diagnosis.waits.shared_locks import kind_at
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.causes import CAUSES
from stallwatch.model.evidence import Evidence, RankEvidence
from stallwatch.model.summary import RankSummary
from stallwatch.model.verdict import Cause, CulpritProcess, EndsByItself, GroupRef, Rejected, Verdict, Where
from stallwatch.progress.job_progress import may_be_held_back_by, overruled_by_steps
from stallwatch.progress.kinds import of_all

# What a hook would have added to a verdict about ranks that have none.


def what_a_hook_adds(ranks: Iterable[RankEvidence]) -> tuple[str, ...]:
    """Given the ranks, return a sentence for those whose record was looked for and is not there; none for bundles of
    other tools, which look for no record."""
    without = [rank.rank for rank in ranks if not rank.heartbeat and _looked_for(rank)]
    if not without:
        return ()
    who = f"rank {without[0]} has" if len(without) == 1 else f"ranks {rank_ranges(without)} have"
    return (
        f"{who} no hook: stallwatch.attach() would add steps, phases and what the flight recorder holds of every "
        "collective",
    )


def _looked_for(rank: RankEvidence) -> bool:
    asked = [attempt for attempt in rank.attempts if attempt.what == "heartbeat"]
    return bool(asked) and not any(attempt.answered for attempt in asked)


class Judgement(msgspec.Struct, frozen=True):
    """What was found, and what each rank was reduced to on the way: worked out once, for whoever reports it."""

    verdicts: tuple[Verdict, ...]  # the primary one first
    activities: dict[int, RankActivity]  # by rank: what it does
    summaries: dict[int, RankSummary]  # by rank: what its recorders say
    ranks: tuple[RankEvidence, ...] = ()  # as they were judged: without what logs tell of lives and attempts before


def judge(evidence: Evidence) -> Judgement:
    """Given evidence, return the judgement. The order of ranks and files does not matter."""
    ranks = of_this_life(sorted(evidence.ranks, key=lambda rank: rank.rank))
    logs = read_logs(ranks, evidence.log_events, evidence.nodes, evidence.log_nodes)
    ranks = logs.of_last_attempt(ranks)
    summaries = [reduce_rank(rank) for rank in ranks]
    told, trains_from = zip(ranks, summaries, strict=True), training_entry(ranks)
    case = Case(
        summaries,
        {rank.rank: with_transfer(read_activity(rank, trains_from), summary) for rank, summary in told},
        evidence.world_size,
        evidence.nodes,
        {rank.rank: rank for rank in ranks},
        min(evidence.looks, most_looks(ranks)),
        logs,
        evidence.meeting,
        evidence.held_back,
        evidence.went_on,
    )
    return judged(case, ranks)


def judged(case: Case, ranks: Sequence[RankEvidence]) -> Judgement:
    """Given a case and the ranks that it was made of, return the judgement."""
    verdicts = list(judge_case(case))
    if verdicts[0].cause != "healthy":
        missing = (*verdicts[0].missing, *what_a_hook_adds(ranks))
        verdicts[0] = msgspec.structs.replace(verdicts[0], missing=missing)
    return Judgement(tuple(verdicts), case.activities, case.summaries, tuple(ranks))


def judge_case(case: Case) -> tuple[Verdict, ...]:
    """Given a case, return its verdict; where detection measured ranks that are slow, and this is none of a job that
    stands and names others or none, a second one of those ranks: it comes first once it is sure."""
    analysis = analyze_job(case)
    claim, rejected = _decide(analysis)
    claim = doubtful(case, claim)
    verdict = _verdict(analysis, claim, rejected, case.activities)
    held_back = case.held_back
    if held_back is None or not may_be_held_back_by(held_back.ranks, verdict):
        return (verdict,)  # what stands is not held back: who was slow before is another matter
    if verdict.traits.holds_back and verdict.culprits == held_back.ranks:
        return (verdict,)
    overruled = (overruled_by_steps(verdict.cause),) if not verdict.traits.holds_back else ()
    measured = _verdict(analysis, slow_rank.measured(analysis, held_back), overruled, case.activities)
    return (measured, verdict) if held_back.sure else (verdict, measured)


# Which explanation is told: the earlier fact wins.

# Gone, stopped, GPU or fabric, raised, never at rendezvous, then the structure of waits, then who is elsewhere.
PRECEDENCE: tuple[Callable[[Analysis], Saying], ...] = (
    rank_exited.claim,
    told_by_logs.ended,
    process_stopped.claim,
    gpu.gpu_fault,
    gpu.fabric_fault,
    gpu.kernel_stuck,
    rank_raised.claim,
    told_by_logs.raised,
    init_missing.claim,
    told_by_logs.init,
    calls_without_recorder.roots_differ,
    collective_mismatch.claim,
    one_call_off.claim,
    p2p_unmatched.sizes_differ,
    logged_calls.mismatch,
    p2p_unmatched.cycle_of_waits,
    transfers_unrecorded.claim,
    init_missing.groups_differ,
    init_missing.group_not_made,
    unrecorded_barrier.claim,
    not_entered.comm_stuck,
    not_entered.skipped,
    behind_a_lock.claim,
    moving.waiting,
    rpc_answers.claim,
    not_entered.claim,
    processes_apart.claim,
    left_the_loop.claim,
    calls_without_recorder.launched_less,
    calls_without_recorder.called_elsewhere,
    told_by_logs.barrier,
    logged_calls.watchdog,
    told_by_logs.communicator,
    told_by_logs.over,
    one_call_off.before_the_hang,
    rank_exited.crashed,
    rpc_answers.all_ask,
    at_their_end.claim,
    slow_rank.claim,
    moving.healthy,
)


def _decide(analysis: Analysis) -> tuple[Claim, tuple[Rejected, ...]]:
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
    rejected += [Rejected(one.cause, _why_later(first, one)) for one in claims[1:] if one.cause != first.cause]
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
        "undecided", (), "possible", waiting_facts(analysis), missing=_missing(analysis)
    )


def _missing(analysis: Analysis) -> tuple[str, ...]:
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


# How it is told.

# What holds every rank at once though nobody waits for anybody; other places where all may stand (an empty queue, a
# socket) are those of jobs that have nothing to do.
_HOLDS_ALL = ("storage", "data")


def _ends_by_itself(analysis: Analysis, claim: Claim) -> EndsByItself | None:
    """What the claim is about may end by itself: by what it says, or by what its culprits do."""
    ends_with = CAUSES[claim.cause].ends_with
    # Who counts steps on has passed the call that the others wait in: what it does in a step ends, their wait does not.
    if claim.ends_by_itself is not None or ends_with == "nothing" or claim.steps_past:
        return claim.ends_by_itself
    if ends_with == "everybody":
        here = [activity for activity in analysis.case.activities.values() if not activity.end.gone]
        found = of_all([activity.progress.ends_by_itself for activity in here])
        return found if found in _HOLDS_ALL else None
    computes: EndsByItself | None = "compute" if claim.where == "busy_loop" else None
    case = analysis.case
    return of_all([computes or kind_at(case, rank) for rank in claim.culprits])


def _verdict(
    analysis: Analysis, claim: Claim, rejected: tuple[Rejected, ...], activities: dict[int, RankActivity]
) -> Verdict:
    case = analysis.case
    group = case.groups[claim.group] if claim.group is not None else None
    waiting = [rank for rank in analysis.waiting or claim.told_waiting if rank not in claim.culprits]
    ends_by_itself = _ends_by_itself(analysis, claim)
    verdict = Verdict(
        cause=claim.cause,
        culprits=tuple(sorted(claim.culprits)),
        # Nothing certain is said of what may end by itself.
        confidence="likely" if ends_by_itself and claim.confidence == "certain" else claim.confidence,
        summary="",
        culprit_processes=tuple(_process(analysis, rank, claim) for rank in sorted(claim.culprits)),
        waiting=rank_ranges(waiting) if claim.cause not in ("healthy",) else "",
        where=claim.where,
        mismatch=claim.mismatch,
        process_group=GroupRef(group.description, group.ranks) if group is not None else None,
        operation=claim.operation,
        seq=claim.seq,
        because=claim.because,
        rejected=rejected,
        missing=claim.missing,
        slowness=claim.slowness,
        by_design=claim.by_design,
        ends_by_itself=ends_by_itself,
        waits_on=_waits_on(analysis, claim),
        waiting_where=common_where(analysis, waiting),
    )
    aside = _aside(analysis, claim, waiting)
    said = summary(verdict, activities, aside)
    verdict = msgspec.structs.replace(verdict, summary=said, waiting_at=aside.others_at if verdict.waiting else "")
    steps = once((*claim.steps, *(() if claim.steps_are_all else next_steps(verdict, activities, claim.by_line))))
    return with_steps(verdict, steps[:MAXIMUM_STEPS])


# Where a wait is for what others may wait for too; a store is the job's own.
_AT_ANOTHER: frozenset[Where] = frozenset({"filesystem", "checkpoint", "dataloader", "socket"})


def _waits_on(analysis: Analysis, claim: Claim) -> str:
    """The one file system or server that all culprits wait for; where there are none, all ranks that were seen."""
    found = [analysis.case.activity(rank).place for rank in claim.culprits or analysis.case.observed]
    on = {place.waits_on for place in found if place.where in _AT_ANOTHER}
    return on.pop() if len(on) == 1 and all(place.where in _AT_ANOTHER for place in found) else ""


def _aside(analysis: Analysis, claim: Claim, waiting: list[int]) -> SentenceExtras:
    direct = {
        wait.rank
        for wait in analysis.graph.waits
        if claim.seq and (wait.point.group, wait.point.seq) == (claim.group, claim.seq)
    }
    shown = [rank for rank in waiting if rank in direct]
    # Of a mesh the peers of the other dimension wait for the same one, and not behind the first.
    also = {
        wait.rank for wait in analysis.graph.waits if wait.rank in waiting and _is_for(analysis, wait, claim)
    } - direct
    lines = lines_of(analysis, claim, shown or waiting)
    return SentenceExtras(
        site=claim.site,
        direct=rank_ranges(shown),
        also=rank_ranges(also),
        behind=rank_ranges(set(waiting) - direct - also),
        steps_past=claim.steps_past,
        apart=claim.apart,
        parts=tuple(
            (rank_ranges(ranks), what, called_at(analysis, ranks, site, what)) for ranks, what, site in claim.parts
        ),
        race=claim.race,
        others_at=lines.others,
        callers=lines.callers,
        told=claim.told,
        paired=claim.paired,
        unnamed=claim.unnamed,
    )


def _is_for(analysis: Analysis, wait: Wait, claim: Claim) -> bool:
    return any(blocker.rank in claim.culprits for blocker in analysis.graph.blockers.get(wait.point, ()))


def _process(analysis: Analysis, rank: int, claim: Claim) -> CulpritProcess:
    activity = analysis.case.activity(rank)
    gpu = analysis.gpus.get(rank)
    return CulpritProcess(
        rank=rank,
        host=activity.host or next((node.host for node in analysis.case.nodes if rank in node.ranks), None),
        pid=activity.pid,
        gpu_uuid=gpu.uuid if gpu else None,
        where=claim.where if claim.profiled else activity.place.where if activity.known else None,
        frame=claim.frame if claim.profiled else activity.place.frame,
        waits_on=activity.place.waits_on,
    )
