"""One measure of slowness for an incident: statistics of minutes say who and how much, a look says where and why."""

from collections.abc import Sequence
from math import ceil

from msgspec.structs import replace

from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident
from stallwatch.model.verdict import Fact, Slowness, Verdict, cost_of
from stallwatch.progress.job_progress import BY_STEPS, may_be_held_back_by, overruled_by_steps

# What the times of arrival in one look must span before they are no burst of somebody else's work.
_SURE_SECONDS = 8.0
_SURE_STEPS = 8
_DUMPED_SECONDS = 3.0  # of a look, in which recorders have answered
_CHANGED = 1.5  # times its cost: news
# A look at a slow rank lasts so long that it sees some steps; the privileged side allows 12 s at most.
_LEAST_FIRST_SECONDS, _MOST_FIRST_SECONDS = 2, 3
_FIRST_STEPS = 1.5  # the rest of one and a whole one: less may miss what is longer in each
_LEAST_PROFILE_SECONDS, _MOST_PROFILE_SECONDS = 5, 12
_PROFILED_STEPS = 4
_LOOK_SECONDS = 20.0  # beside the profile: 14 to 18 s on two cores at a load of 36, and what is given up begins anew


def measured(incident: Incident, verdicts: Sequence[Verdict]) -> Verdict:
    """Given an incident of slowness and what the last look says, return the verdict with the measure that holds: the
    look's where it sees the same ranks, else what detection measured over many steps, once that is sure."""
    finding, seen = _finding(incident), verdicts[0]
    if finding is None:
        return seen
    by_steps = next((verdict for verdict in verdicts if _is_by_steps(verdict, finding)), None)
    if seen is by_steps:
        return _as_measured_now(by_steps, finding) if finding.stage == "confirmed" else seen
    if seen.traits.holds_back and seen.culprits == finding.ranks:
        # Beside what a look measured there is no second figure of the same.
        seen = replace(seen, because=(*seen.because, Fact(finding.without_cost or finding.reason, BY_STEPS)))
        if seen.slowness is None and finding.slowness is not None:
            return replace(seen, slowness=finding.slowness)
        if _is_bound(seen.slowness) and finding.slowness is not None and not finding.slowness.at_most:
            # Of hosts that run ahead of their devices steps tell what they cost, where they were seen without.
            seen = _with_cost(seen, finding.slowness)
        sure = seen.slowness is not None and is_sure(seen.slowness)
        return replace(seen, confidence="likely") if sure and seen.confidence == "possible" else seen
    if finding.stage != "confirmed" or not may_be_held_back_by(finding.ranks, seen):
        return seen
    rejected = (overruled_by_steps(seen.cause),) if not seen.traits.holds_back else ()
    if by_steps is not None:
        return replace(_as_measured_now(by_steps, finding), rejected=rejected)
    return Verdict(
        cause="slow_rank",
        culprits=finding.ranks,
        confidence="likely",
        summary=finding.reason[:1].upper() + finding.reason[1:],
        because=(Fact(finding.reason, BY_STEPS),),
        rejected=rejected,
        slowness=finding.slowness,
    )


def _is_bound(cost: Slowness | None) -> bool:
    return cost is not None and cost.at_most


def with_measured(verdict: Verdict, verdicts: Sequence[Verdict], incident: Incident) -> tuple[Verdict, ...]:
    """The verdict that holds, and behind it what a look found of the ranks that many steps show: it holds once these
    are sure."""
    finding = _finding(incident)
    by_steps = (one for one in verdicts if finding is not None and _is_by_steps(one, finding))
    return (verdict, *(() if verdict.traits.holds_back else by_steps))


def _is_by_steps(verdict: Verdict, finding: Finding) -> bool:
    same = verdict.traits.holds_back and verdict.culprits == finding.ranks
    return same and any(fact.source == BY_STEPS for fact in verdict.because)


def _as_measured_now(verdict: Verdict, finding: Finding) -> Verdict:
    """A verdict by many steps was made of what had been measured when the look began."""
    verdict = _with_cost(verdict, finding.slowness) if finding.slowness is not None else verdict
    others = (fact for fact in verdict.because if fact.source != BY_STEPS)
    return replace(verdict, confidence="likely", because=(Fact(finding.reason, BY_STEPS), *others))


def _with_cost(verdict: Verdict, cost: Slowness) -> Verdict:
    """The same, with this figure instead of its own, if it has one."""
    summary = verdict.summary
    if verdict.slowness is not None:
        summary = summary.replace(cost_of(verdict.slowness), cost_of(cost))
    return replace(verdict, summary=summary, slowness=cost)


def profile_seconds(incident: Incident, look: int) -> int:
    """How long a look sees what ranks do: some steps of a job that is held back by some; 0 where nobody is. The first,
    for which somebody waits to be told, is short."""
    finding = next((finding for finding in incident.findings if finding.detector == "slow"), None)
    if finding is None:
        return 0
    step_seconds = finding.slowness.step_seconds if finding.slowness is not None else 0.0
    if look == 1:
        known = ceil(_FIRST_STEPS * step_seconds) if step_seconds else _MOST_FIRST_SECONDS
        return min(max(known, _LEAST_FIRST_SECONDS), _MOST_FIRST_SECONDS)
    return min(max(round(_PROFILED_STEPS * step_seconds), _LEAST_PROFILE_SECONDS), _MOST_PROFILE_SECONDS)


def look_seconds(incident: Incident, look: int) -> float:
    """How long the look under way is given before the next takes its place; 0: no time."""
    seconds = profile_seconds(incident, look)
    return seconds + _LOOK_SECONDS if seconds else 0.0


def agrees(incident: Incident, verdict: Verdict) -> bool:
    """Two ways to see it, one answer: the waits of many steps, and the times at which ranks came in the last."""
    finding = _finding(incident)
    return finding is not None and verdict.traits.holds_back and verdict.culprits == finding.ranks


def is_sure(slowness: Slowness, more_seconds: float = 0.0) -> bool:
    """It spans enough time and steps to be a state of a rank; `more_seconds`: for so long it has gone on since."""
    return slowness.seconds + more_seconds >= _SURE_SECONDS and slowness.steps >= _SURE_STEPS


def untold(incident: Incident, verdict: Verdict | None, least_share: float, since_seconds: float = 0.0) -> str:
    """Return why nobody is told of a slow rank yet, "" when it is to be told. `since_seconds`: so long ago began the
    look that told the verdict."""
    if verdict is None or not verdict.traits.holds_back:
        return "no look has shown who holds the job back"
    finding = _finding(incident)
    by_statistics = finding is not None and finding.stage == "confirmed" and finding.ranks == verdict.culprits
    # What many steps have shown since the look is of the same state: what it saw is longer by that.
    same = finding is not None and finding.lately and finding.ranks == verdict.culprits
    more_seconds = max(0.0, since_seconds - _DUMPED_SECONDS) if same else 0.0
    sure = by_statistics or (verdict.slowness is not None and is_sure(verdict.slowness, more_seconds))
    if finding is not None and finding.from_start and finding.stage != "confirmed":
        return "it has been so since the first steps, and may end with them (compilation, warm-up)"
    if not sure:
        return f"it must have been so for {_SURE_SECONDS:g} s and {_SURE_STEPS} steps"
    if verdict.by_design:
        return verdict.by_design
    cost = verdict.slowness
    if cost is not None and 0.0 < cost.step_seconds <= cost.cost_seconds:
        return "the others wait for it all the time, and how long a step is without that nobody has seen"
    if cost is not None and cost.step_seconds and cost.share < least_share:
        return f"it costs the job {cost.share:.0%} of a step, less than {least_share:.0%} (slow.cost_share)"
    return ""


def has_changed(incident: Incident) -> bool:
    """Whether what is measured now is far from what the verdict says."""
    verdict, finding = incident.verdict, _finding(incident)
    before = verdict.slowness if verdict is not None else None
    now = finding.slowness if finding is not None else None
    if before is None or now is None or not before.cost_seconds or finding is None or verdict is None:
        return False
    if finding.ranks != verdict.culprits:
        return True
    # Beyond what either measure leaves open.
    return now.low_seconds > _CHANGED * before.cost_seconds or now.high_seconds < before.cost_seconds / _CHANGED


def _finding(incident: Incident) -> Finding | None:
    return next((finding for finding in incident.findings if finding.family == "slow"), None)
