"""A rank that others wait for goes on with its own steps: it went past the call, and will not come back to it.

In synchronous training all ranks count the same steps. A rank that is late is behind those that wait for it; one that
is ahead of them has passed the place without calling (a no_sync that lasts, a branch around the collective).
"""

from collections.abc import Iterable

from stallwatch.diagnosis.analysis import Story
from stallwatch.diagnosis.claim import (
    Claim,
    Saying,
    activity_facts,
    frontier_fact,
    main_wait,
    named,
    operation_of,
    waiting_facts,
)
from stallwatch.model.snapshot import Heartbeat
from stallwatch.model.verdict import Fact

# Loops that launch ahead of their GPU, or count a step before its last call, are one or two ahead in health.
_STEPS_AHEAD = 5
# What the steps after the others' stop may differ from the lead, if both counted alike until then.
_SLACK_STEPS = 2.0
_SLACK_SHARE = 0.25


def claim(story: Story) -> Saying:
    if not story.hangs:
        return None
    absent = story.absent
    waiting = [rank for rank in story.waiting if rank not in absent]
    ahead = {rank: steps for rank in absent if (steps := _steps_ahead(story, rank, waiting)) is not None}
    if not ahead or len(ahead) < len(absent) or 2 * len(ahead) >= len(story.case.observed):
        return None
    ranks = tuple(sorted(ahead))
    wait = main_wait(story, ranks)
    if wait is None:
        return None
    frontiers = [fact for rank in ranks if (fact := frontier_fact(story, rank, wait.point.group)) is not None]
    return Claim(
        cause="not_entered",
        culprits=ranks,
        confidence="likely",
        because=(
            *(
                Fact(
                    f"rank {rank} has counted {ahead[rank]} steps more than {named(waiting)}, with which it was in "
                    "step before: it went past the call in which they wait",
                    "heartbeats",
                )
                for rank in ranks
            ),
            *waiting_facts(story),
            *frontiers,
            *activity_facts(story, ranks),
        ),
        where="user_code",
        group=wait.point.group,
        operation=operation_of(story, wait),
        seq=wait.point.seq or None,
        steps_past=min(ahead.values()),
    )


def _steps_ahead(story: Story, rank: int, waiting: Iterable[int]) -> int | None:
    """By how many steps a rank leads all that wait, where all were in step until these stopped; None otherwise."""
    mine = _beat(story, rank)
    if mine is None or mine.step is None or mine.last_step_ns is None or not mine.step_durations_ns:
        return None
    host = story.case.activity(rank).host
    others = [(waiter, _beat(story, waiter)) for waiter in waiting]
    counted = [
        (beat.step, beat.last_step_ns)
        for waiter, beat in others
        # The clock of steps is the node's own.
        if beat is not None and story.case.activity(waiter).host == host
        if beat.step is not None and beat.last_step_ns is not None
    ]
    if not counted or len(counted) < len(others):
        return None
    step, stopped_ns = max(counted)
    ahead = mine.step - step
    usual_ns = sum(mine.step_durations_ns) / len(mine.step_durations_ns)
    since_then = (mine.last_step_ns - stopped_ns) / usual_ns if usual_ns > 0 else 0.0
    # Roles that count other things (a sampler beside trainers) never were in step.
    alike = abs(ahead - since_then) <= _SLACK_STEPS + _SLACK_SHARE * since_then
    return ahead if ahead >= _STEPS_AHEAD and alike else None


def _beat(story: Story, rank: int) -> Heartbeat | None:
    evidence = story.case.evidence.get(rank)
    beats = [beat for beat in evidence.heartbeat if not beat.is_child] if evidence else []
    return beats[-1] if beats else None
