"""What a hook would have added to a verdict about ranks that have none."""

from collections.abc import Iterable

from stallwatch.diagnosis.rank_ranges import rank_ranges
from stallwatch.model.evidence import RankEvidence


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
