"""What earlier lives of the same job say: the same step again is data or code, random steps and ranks are not."""

from collections.abc import Sequence

from stallwatch.model.incident import Incident

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_SAME_STEP = 2  # a job that resumes from a checkpoint counts its steps anew, off by one or two


def recurrence(incident: Incident, earlier: Sequence[Incident]) -> str:
    """Given an incident with its verdict and incidents of the past, return a sentence, "" where there is no pattern.

    It says what is consistent with the pattern, never what it proves.
    """
    if not _is_hang(incident):
        return ""
    same_job = [
        other
        for other in earlier
        if other.job.name == incident.job.name and other.incident_id != incident.incident_id and _is_hang(other)
    ]
    if not same_job:
        return ""
    hangs = [incident, *same_job]
    ordinal = _ORDINALS[len(hangs) - 1] if len(hangs) <= len(_ORDINALS) else f"{len(hangs)}th"
    runs = len({one.job.epoch for one in hangs})
    pattern = _of_steps(hangs) or _of_ranks(hangs) or "no step and no rank recurs"
    over = "in one run" if runs == 1 else f"in {runs} runs"
    return f"this is the {ordinal} hang of this job that is known here, {over}: {pattern}"


def _is_hang(incident: Incident) -> bool:
    verdict = incident.verdict
    known = verdict is not None and verdict.traits.accuses
    return known and any(finding.family == "hang" for finding in incident.findings)


def _of_steps(hangs: Sequence[Incident]) -> str:
    step = step_of(hangs[0])
    same = [one for one in hangs if step is not None and _near(step_of(one), step)]
    if len(same) < 2:
        return ""
    times = "each time" if len(same) == len(hangs) else f"{len(same)} times"
    if step == 0:
        return f"{times} before its first step; consistent with its set-up, the network or a machine"
    return f"{times} at step {step}; consistent with data or code that this step meets"


def _of_ranks(hangs: Sequence[Incident]) -> str:
    culprits = [set(one.verdict.culprits) for one in hangs if one.verdict]
    common = set.intersection(*culprits)
    if common:
        ranks, places = ", ".join(map(str, sorted(common))), _places(hangs, common)
        if len(places) == 1:
            return f"always rank {ranks} on {places.pop()}, at different steps; consistent with that machine or GPU"
        return f"always rank {ranks}, at different steps; consistent with that rank's shard of the data or its role"
    if len(hangs) > 2 and len({frozenset(one) for one in culprits}) == len(hangs):
        return "at different steps and on another rank each time; consistent with hardware, network or a library"
    return ""


def _places(hangs: Sequence[Incident], ranks: set[int]) -> set[str]:
    """Where these ranks ran: host and, where it is known, GPU."""
    return {
        f"{process.host or one.node}{f' {process.gpu_uuid}' if process.gpu_uuid else ''}"
        for one in hangs
        if one.verdict
        for process in one.verdict.culprit_processes
        if process.rank in ranks
    }


def step_of(incident: Incident) -> int | None:
    """The step that the job stood at, by the findings."""
    steps = [finding.step for finding in incident.findings if finding.step is not None]
    return max(steps, default=None)


def _near(step: int | None, other: int) -> bool:
    return step is not None and abs(step - other) <= _SAME_STEP
