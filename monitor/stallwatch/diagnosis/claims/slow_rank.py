"""The job moves and ranks hold it back: which, by arrival times or by many steps."""

from collections.abc import Sequence

from msgspec.structs import replace

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, common_where, named
from stallwatch.diagnosis.job.given_work import given_times
from stallwatch.diagnosis.job.pace import Late
from stallwatch.diagnosis.slow_reasons import Reasons, slow_reasons
from stallwatch.diagnosis.slow_signs import OF_COST
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.evidence import HeldBack
from stallwatch.model.verdict import Fact, Rejected, Slowness
from stallwatch.progress.job_progress import BY_STEPS

_MORE_GIVEN = 0.1  # of what the others receive


def claim(analysis: Analysis) -> Saying:
    """The job moves and some ranks come last in nearly every call."""
    if analysis.proven_stuck or (not analysis.moves and analysis.hangs):
        return None
    slow = analysis.pace.slowest()
    if slow is None:
        return Rejected("slow_rank", "no rank comes last in nearly every step") if analysis.moves else None
    # One look shows no motion of its own, but who has come late each time to calls that were made until just now.
    if not analysis.moves and not analysis.pace.just_moved(slow.group):
        return None
    # A host that is late to its device costs less than the others' hosts wait for it.
    ahead = analysis.case.groups[slow.group].backend == "nccl"
    cost = replace(slow.slowness, at_most=ahead)
    come = verb(slow.ranks, "comes", "come")
    why = slow_reasons(analysis.case, slow.ranks, cost, analysis.gpus)
    return Claim(
        cause="slow_rank",
        culprits=slow.ranks,
        confidence="likely" if slow.all_seen and analysis.moves else "possible",
        because=(
            Fact(
                f"{named(slow.ranks)} {come} {cost.cost_seconds:.3g} s after the others in {slow.share_last:.0%} of "
                f"the last {cost.steps} calls; a step takes {cost.step_seconds:.3g} s",
                "arrival times in the flight recorders",
            ),
            Fact("the job moves" if analysis.moves else "the job moved until just now", "flight recorders"),
            *why.facts,
            *(() if why.profiled else activity_facts(analysis, slow.ranks)),
        ),
        where=why.where if why.profiled else common_where(analysis, slow.ranks),
        group=slow.group,
        slowness=cost,
        by_design=_by_design(analysis, slow.ranks, cost, why, _moved_seconds(analysis, slow, why)),
        profiled=why.profiled,
        frame=why.frame,
        told=_told(analysis, slow.ranks, why),
        steps=why.steps,
        steps_are_all=bool(why.steps),
    )


def measured(analysis: Analysis, held_back: HeldBack) -> Claim:
    """Ranks that are slow by many steps, where the times of arrival in the last do not show it: with the line that a
    profile of them shows, and what goes with it."""
    cost = held_back.slowness
    why = slow_reasons(analysis.case, held_back.ranks, cost, analysis.gpus)
    return Claim(
        cause="slow_rank",
        culprits=held_back.ranks,
        confidence="likely" if held_back.sure else "possible",
        because=(Fact(held_back.reason, BY_STEPS), *why.facts),
        where=why.where,
        slowness=cost,
        by_design=_by_design(analysis, held_back.ranks, cost, why, 0.0),
        profiled=True,  # what a single look shows of it is no line that takes the time
        frame=why.frame,
        told=_told(analysis, held_back.ranks, why),
        steps=why.steps,
        steps_are_all=bool(why.steps),
    )


def _moved_seconds(analysis: Analysis, slow: Late, why: Reasons) -> float:
    """By how much the others have less to do in each step since these ranks are slow; 0.0: nothing that says so. A CPU
    that is not theirs alone makes their own time vary as work does: others' programs end, and all ranks are faster (a
    rank that slept 30 % longer among eight on three cores: its seven peers had 37 ms less, and nobody was told in
    100 s). There the steps count in which least was in the way; where nothing tells, these as well as most of them.
    What has moved from them they do as well: no line of which they know nothing."""
    spent, step_seconds = why.spent, slow.slowness.step_seconds
    if spent is not None and spent.is_alone and spent.share >= OF_COST * slow.slowness.cost_seconds / step_seconds:
        return 0.0
    if why.peers_without_cpu is None:
        return min(slow.eased_seconds, slow.eased_at_best_seconds)
    others = max(len(analysis.case.evidence) - len(slow.ranks), 1)
    each = max(slow.eased_seconds, slow.eased_at_best_seconds) / others / step_seconds
    return slow.eased_at_best_seconds if why.peers_without_cpu >= OF_COST * each else slow.eased_seconds


def _by_design(
    analysis: Analysis, slow: Sequence[int], cost: Slowness | None, why: Reasons, moved_seconds: float
) -> str:
    """Why this is work that the program gives these ranks and not the others, "" where nothing says so. What goes with
    contention or page faults is none."""
    if why.waits is not None:
        return (
            f"{named(slow)} {verb(slow, 'waits', 'wait')} for others {why.waits.share:.0%} of the time, at "
            f"{why.waits.line}, in calls that no recorder counts, as gloo's sends and receives: who is slow is not seen"
        )
    if why.explained:
        return ""
    if moved_seconds:
        return (
            f"since then the others together have {moved_seconds:.2g} s less to do in each step: work has moved to "
            f"{named(slow)}, as experts and dynamic batches move it"
        )
    given = _given(analysis, slow) if cost is not None else None
    if given is not None and cost is not None and given - 1.0 >= max(OF_COST * cost.share, _MORE_GIVEN):
        return (
            f"{named(slow)} {verb(slow, 'receives', 'receive')} {given:.1f} times as much as the others in all-to-all "
            "exchanges: consistent with work that the program gives there (experts that are chosen more often)"
        )
    spent = why.spent
    if (
        _is_from_start(analysis, slow)
        and len(slow) == 1
        and _is_first_of_node(analysis, slow[0])
        and spent is not None
        and not spent.is_shared
    ):
        return (
            f"{named(slow)} alone is at {spent.line}, and so since its first steps: consistent with work that the "
            "program gives to the first rank (logs, metrics)"
        )
    return ""


def _given(analysis: Analysis, slow: Sequence[int]) -> float | None:
    ranks = analysis.case.evidence
    return given_times([ranks[rank] for rank in slow], [one for rank, one in ranks.items() if rank not in slow])


def _told(analysis: Analysis, slow: Sequence[int], why: Reasons) -> str:
    held_back = analysis.case.held_back
    grows = held_back is not None and held_back.grows and held_back.ranks == tuple(slow)
    since = f"{'they have' if len(slow) > 1 else 'it has'} been so since the first steps"
    since = since if _is_from_start(analysis, slow) else "it costs more and more" if grows else ""
    return "; ".join(filter(None, (since, why.told)))


def _is_from_start(analysis: Analysis, slow: Sequence[int]) -> bool:
    held_back = analysis.case.held_back
    return held_back is not None and held_back.from_start and held_back.ranks == tuple(slow)


def _is_first_of_node(analysis: Analysis, rank: int) -> bool:
    evidence = analysis.case.evidence.get(rank)
    beats = evidence.heartbeat if evidence is not None else ()
    return rank == 0 or any(beat.local_rank == 0 for beat in beats)
