"""The limit in force for one rank now, with its reason: shown to people and used by the stall detector alike."""

from collections.abc import Sequence

from stallwatch.config_sections import StallSection
from stallwatch.detectors.history import RankHistory
from stallwatch.detectors.limits import Limit, limit_of

_PHASE_CAP_SECONDS = 300.0  # a look costs milliseconds: no phase makes us blind for longer


def rank_limit(rank: RankHistory, stall: StallSection) -> Limit:
    """Return how long this rank may stand still before it is looked at.

    Inside a phase its own past counts; a phase never seen before is looked at after the floor, because only evidence
    tells a stuck checkpoint from a long one, and looking tells nobody.
    """
    if rank.phase:
        learned = limit_of(rank.times_of_phase(rank.phase), f"phase {rank.phase}", stall.floor_seconds)
        if learned:
            return Limit(min(learned.seconds, _PHASE_CAP_SECONDS), learned.why, learned.of)
        past = rank.times_of_phase(rank.phase).recent
        if past:
            seconds = min(max(2 * max(past) / 1e9, stall.floor_seconds), _PHASE_CAP_SECONDS)
            return Limit(seconds, "2 × the longest of {} times in phase {}", (len(past), rank.phase))
        return Limit(stall.floor_seconds, "the floor; first time in phase {}", (rank.phase,), learned=False)
    candidates = [
        limit_of(rank.step_times, "the step", stall.floor_seconds) if rank.counts_steps else None,
        limit_of(rank.gap_times, "gaps between collectives", stall.floor_seconds),
    ]
    limits = [limit for limit in candidates if limit]
    if limits:
        return min(limits, key=lambda limit: limit.seconds)
    if not rank.begun:
        return Limit(stall.start_seconds, "it has not begun to step", learned=False)
    return Limit(stall.unlearned_seconds, "too few steps were seen to learn one", learned=False)


def job_limits(ranks: Sequence[RankHistory], stall: StallSection) -> list[Limit]:
    """Return the limit of each rank of a job, none longer than most of its peers': they take the same steps.

    One rank that was seen late, or that had two long steps, does not make its whole job wait. A phase is its own time.
    """
    limits = [rank_limit(rank, stall) for rank in ranks]
    learned = sorted((limit for limit, rank in zip(limits, ranks, strict=True) if not rank.phase), key=_seconds)
    if len(learned) < 3:
        return limits
    most = learned[len(learned) // 2]
    return [
        limit
        if rank.phase or limit.seconds <= most.seconds
        else Limit(most.seconds, most.why + ", as its peers'", most.of)
        for limit, rank in zip(limits, ranks, strict=True)
    ]


def _seconds(limit: Limit) -> float:
    return limit.seconds
