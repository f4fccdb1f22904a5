"""What to do next, specific to what was found: two to four steps with real hosts and pids."""

from collections.abc import Mapping

from stallwatch.diagnosis.activity import Activity
from stallwatch.model.verdict import Verdict


def next_steps(verdict: Verdict, activities: Mapping[int, Activity]) -> tuple[str, ...]:
    """Given a verdict and what the ranks do, return two to four steps that harm nothing."""
    return ()
