"""The job moves: healthy, or one rank holds it back; or a long wait whose culprit makes progress."""

from stallwatch.diagnosis.case import Case
from stallwatch.diagnosis.claims.claim import (
    Claim,
    Saying,
    activity_facts,
    common_where,
    main_wait,
    named,
    operation_of,
    waiting_facts,
)
from stallwatch.diagnosis.claims.not_entered import culprits as absent_ranks
from stallwatch.diagnosis.claims.rank_exited import end_of, exit_code
from stallwatch.diagnosis.story import Story
from stallwatch.model.verdict import Confidence, Fact, Rejected
from stallwatch.progress.job import many_move


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
            *activity_facts(story, slow.ranks),
        ),
        where=common_where(story, slow.ranks),
        group=slow.group,
        slowness=cost,
    )


def waiting(story: Story) -> Saying:
    if not story.hangs:
        return None
    found = absent_ranks(story)
    moving = [rank for rank in found if story.case.activity(rank).moving]
    many = len(moving) > 1 and many_move(moving, story.case.observed)  # that is a job that moves
    if not moving or len(moving) < len(found) or many:
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


def healthy(story: Story) -> Saying:
    case = story.case
    if any(summary.outran for summary in case.summaries.values()):
        return Rejected("healthy", "something has not completed that the ring has lost")
    if story.moves and (story.ends_move or not story.proven_stuck):
        source = "flight recorders" if any(case.recorded(rank) for rank in case.observed) else "stacks and steps"
        return Claim("healthy", (), _how_sure(case), (Fact("the job moves", source),))
    absent = absent_ranks(story)
    if story.hangs and absent and all(case.activity(rank).moving for rank in absent):
        return Claim("healthy", (), "likely", (Fact(f"{named(absent)} make progress", "two looks"),))
    if story.hangs and story.graph.moving and not (absent or story.roots.cycles):
        moving = [rank for rank, activity in case.activities.items() if activity.moving]
        if many_move(moving, case.observed):
            return Claim("healthy", (), "likely", (Fact(f"{named(moving)} make progress", "two looks"),))
    if story.hangs:
        return None
    ended = [rank for rank, activity in case.activities.items() if activity.gone]
    if any(exit_code(end_of(story, rank)) != 0 for rank in ended):
        return None
    if ended and len(ended) == len(case.observed):
        return Claim("healthy", (), "likely", (Fact("every process ended with exit code 0", "/proc"),))
    if case.world and all(_stands_in_storage(case, rank) for rank in case.world):
        return Rejected("healthy", "every rank stands in its storage, at the same place at both looks")
    if all(rank in story.graph.moving or _is_outside(case, rank) for rank in case.world):
        return Claim("healthy", (), "possible", (Fact("no rank waits for another", "flight recorders and stacks"),))
    return None


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


def _stands_in_storage(case: Case, rank: int) -> bool:
    """A file server that is gone holds every rank at once, and nobody waits for anybody. Other places where all may
    stand, an empty queue or a socket, are those of jobs that have nothing to do."""
    activity = case.activity(rank)
    return activity.moving is False and activity.where in ("filesystem", "dataloader", "checkpoint")


def _is_outside(case: Case, rank: int) -> bool:
    """Nothing pending, and a stack outside of communication: one alone leaves room for a wait that it does not show."""
    activity = case.activity(rank)
    summary = case.summaries.get(rank)
    settled = case.recorded(rank) and summary is not None and not summary.pending and not summary.outran
    elsewhere = activity.known and activity.in_collective is False and not activity.gpu_sync
    return settled and elsewhere and not activity.in_store_or_init
