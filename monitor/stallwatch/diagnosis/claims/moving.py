"""The job moves: healthy, or one rank holds it back; or a long wait whose culprit makes progress."""

from collections.abc import Sequence

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    activity_facts,
    common_where,
    end_of,
    exit_code,
    main_wait,
    named,
    operation_of,
    waiting_facts,
)
from stallwatch.diagnosis.claims.slow_rank import Reasons, reasons
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.waits.absent import goes_on
from stallwatch.model.evidence import HeldBack
from stallwatch.model.verdict import Confidence, Fact, Rejected
from stallwatch.progress.job import BY_STEPS


def slow_rank(story: Story) -> Saying:
    if story.proven_stuck or (not story.moves and story.hangs):
        return None
    slow = story.pace.slowest()
    if slow is None:
        return Rejected("slow_rank", "no rank comes last in nearly every step") if story.moves else None
    # One look shows no motion of its own, but who has come late each time to calls that were made until just now.
    if not story.moves and not story.pace.just_moved(slow.group):
        return None
    cost = slow.slowness
    come = "comes" if len(slow.ranks) == 1 else "come"
    why = reasons(story, slow.ranks, cost)
    return Claim(
        cause="slow_rank",
        culprits=slow.ranks,
        confidence="likely" if slow.all_seen and story.moves else "possible",
        because=(
            Fact(
                f"{named(slow.ranks)} {come} {cost.cost_seconds:.3g} s after the others in {slow.share_last:.0%} of "
                f"the last {cost.steps} calls; a step takes {cost.step_seconds:.3g} s",
                "arrival times in the flight recorders",
            ),
            Fact("the job moves" if story.moves else "the job moved until just now", "flight recorders"),
            *why.facts,
            *(() if why.profiled else activity_facts(story, slow.ranks)),
        ),
        where=why.where if why.profiled else common_where(story, slow.ranks),
        group=slow.group,
        slowness=cost,
        by_design=_by_design(story, slow.ranks, why, slow.eased_seconds),
        profiled=why.profiled,
        frame=why.frame,
        told=why.told,
        steps=why.steps,
    )


def measured_slow(story: Story, held_back: HeldBack) -> Claim:
    """Ranks that are slow by many steps, where the times of arrival in the last do not show it: with the line that a
    profile of them shows, and what goes with it."""
    cost = held_back.slowness
    why = reasons(story, held_back.ranks, cost)
    return Claim(
        cause="slow_rank",
        culprits=held_back.ranks,
        confidence="likely" if held_back.sure else "possible",
        because=(Fact(held_back.reason, BY_STEPS), *why.facts),
        where=why.where,
        slowness=cost,
        by_design=_by_design(story, held_back.ranks, why, 0.0),
        profiled=True,  # what a single look shows of it is no line that takes the time
        frame=why.frame,
        told=why.told,
        steps=why.steps,
    )


def _by_design(story: Story, slow: Sequence[int], why: Reasons, eased_seconds: float) -> str:
    """Why this is work that the program gives these ranks and not the others, "" where nothing says so. What goes with
    contention or page faults is none."""
    if why.explained:
        return ""
    if eased_seconds:
        return (
            f"since then the others together have {eased_seconds:.2g} s less to do in each step: work has moved to "
            f"{named(slow)}, as experts and dynamic batches move it"
        )
    spent, held_back = why.spent, story.case.held_back
    always = held_back is not None and held_back.from_start and held_back.ranks == tuple(slow)
    if always and len(slow) == 1 and _is_first_of_node(story, slow[0]) and spent is not None and not spent.is_shared:
        at = f"{spent.frame.filename.rpartition('/')[2]}:{spent.frame.line}"
        return (
            f"{named(slow)} alone is at {at}, and so since its first steps: consistent with work that the program "
            "gives to the first rank (logs, metrics)"
        )
    return ""


def _is_first_of_node(story: Story, rank: int) -> bool:
    evidence = story.case.evidence.get(rank)
    beats = evidence.heartbeat if evidence is not None else ()
    return rank == 0 or any(beat.local_rank == 0 for beat in beats)


def waiting(story: Story) -> Saying:
    """A long wait that will end: all for whom the others wait make progress."""
    moving = _awaited_and_moving(story)
    if not moving:
        return None
    wait = main_wait(story, moving)
    return Claim(
        cause="waiting",
        culprits=tuple(moving),
        confidence="likely",
        because=(
            Fact(f"{named(moving)} {'makes' if len(moving) == 1 else 'make'} progress", "two looks"),
            *waiting_facts(story),
            *activity_facts(story, moving),
        ),
        where=common_where(story, moving),
        group=wait.point.group if wait else None,
        operation=operation_of(story, wait) if wait else None,
        seq=wait.point.seq or None if wait else None,
    )


def _awaited_and_moving(story: Story) -> list[int]:
    case = story.case
    if story.hangs and (absent := list(story.absent)):
        return absent if all(goes_on(case, rank) for rank in absent) else []
    alive = [rank for rank in case.observed if not case.activity(rank).gone]
    moving = [rank for rank in alive if _moved(case, rank)]
    still = [rank for rank in alive if rank not in moving]
    # Nobody is known to be elsewhere: whose turn has just come may be what the others wait for.
    inside = any(not story.graph.unknown[point] for point in story.roots.closed) and not story.ends_move
    stuck = story.roots.cycles or inside
    if not still or stuck or not set(still) <= set(story.waiting):
        return []
    return [rank for rank in moving if rank not in story.waiting] or moving


def healthy(story: Story) -> Saying:
    """A claim that needs its proof: between two looks every rank that was seen moved. What is unchanged, or was looked
    at once, may stand."""
    case = story.case
    if any(summary.outran for summary in case.summaries.values()):
        return Rejected("healthy", "something has not completed that the ring has lost")
    ended = [rank for rank, activity in case.activities.items() if activity.gone]
    if any(exit_code(end_of(story, rank)) != 0 for rank in ended):
        return None
    if ended and len(ended) == len(case.observed):
        return Claim("healthy", (), "likely", (Fact("every process ended with exit code 0", "/proc"),))
    still = [rank for rank in case.observed if not (case.activity(rank).gone or _moved(case, rank))]
    if still or not case.observed:
        verb = "was" if len(still) == 1 else "were"
        return Rejected("healthy", f"{named(still)} {verb} not seen to move between two looks" if still else "no rank")
    if story.proven_stuck and not story.ends_move:
        return None
    source = "flight recorders" if any(case.recorded(rank) for rank in case.observed) else "stacks and steps"
    return Claim("healthy", (), _how_sure(case), (Fact("every rank that was seen moved between two looks", source),))


def _moved(case: Case, rank: int) -> bool:
    return bool(case.activity(rank).moving) or _calls_end(case, rank)


def _how_sure(case: Case) -> Confidence:
    """A stack that changed is a thread that moved; only calls that end, or steps, are a job that moves."""
    if case.looks > 1 and case.world_size is not None and all(_calls_end(case, rank) for rank in case.world):
        return "certain"
    recorded = any(case.recorded(rank) for rank in case.observed)
    return "likely" if recorded or any(_steps(case, rank) for rank in case.observed) else "possible"


def _calls_end(case: Case, rank: int) -> bool:
    summary = case.summaries.get(rank)
    return case.recorded(rank) and summary is not None and bool(summary.advanced)


def _steps(case: Case, rank: int) -> bool:
    return bool(case.activity(rank).moving) and any(fact.source == "heartbeat" for fact in case.activity(rank).why)
