"""What this node sees of an incident beside what the job's nodes see together: whether it proves a culprit, which lines
of code only this node may show, and what a verdict says that lacks the others. Pure."""

from collections.abc import Sequence

from msgspec.structs import replace

from stallwatch.model.verdict import CulpritProcess, Report, Verdict

_OTHERS = "what the job's other nodes see"  # that it is missing
START_IT = "Start the meeting place again (fleet.url), and they are judged together."


def with_own_lines(report: Report, own: Report) -> Report:
    """The job's verdict with lines of code of ranks that run here: they stay on their node, where people are shown
    them."""
    lines = {
        (place.rank, place.pid, place.frame.line, place.frame.function): place.frame.source
        for verdict in own.verdicts
        for place in verdict.culprit_processes
        if place.frame is not None and place.frame.source
    }

    def shown(place: CulpritProcess) -> CulpritProcess:
        frame = place.frame
        if frame is None or frame.source:
            return place
        source = lines.get((place.rank, place.pid, frame.line, frame.function))
        return place if source is None else replace(place, frame=replace(frame, source=source))

    if not lines:
        return report
    verdicts = (
        replace(one, culprit_processes=tuple(shown(place) for place in one.culprit_processes))
        for one in report.verdicts
    )
    return replace(report, verdicts=tuple(verdicts))


def alone(report: Report, why: str, unheard: str = "The job's other nodes", mend: str = START_IT) -> Report:
    """This node's own verdict, or of those that it can hear, which says that it is."""
    verdicts = tuple(_alone_verdict(one, why, unheard, mend) for one in report.verdicts)
    return replace(report, verdicts=verdicts, evidence_complete=False)


def _alone_verdict(verdict: Verdict, why: str, who: str, mend: str) -> Verdict:
    missing = tuple(one for one in verdict.missing if not one.startswith(_OTHERS))
    missing = (f"{_OTHERS}: {why}", *missing)
    if len(missing) == len(verdict.missing):  # left by the daemon before this one: it says so
        return replace(verdict, missing=missing)
    unheard = f"{who} could not be heard."
    if verdict.waiting and not verdict.traits.accuses:
        unheard = f"What holds them up is on another node, or unknown: {unheard.replace('The job', 'the job', 1)}"
        verdict = verdict.with_first_step(
            f"See on {who.replace('The job', 'the job', 1)} what was found: stallwatch incidents. {mend}"
        )
    return replace(verdict, summary=f"{verdict.summary} {unheard}", missing=missing)


def is_proven(report: Report | None, ranks: Sequence[int], *, at_once: bool = False) -> bool:
    """Whether what this node sees is proven without the others; `at_once`: before all have said what they see."""
    verdict: Verdict | None = report.verdicts[0] if report is not None and report.verdicts else None
    if verdict is None or not accuses_own(report, ranks):
        return False
    by = verdict.traits.proven_by
    if at_once and by != "its_node_at_once":
        return False
    return verdict.confidence == "certain" or (verdict.confidence == "likely" and by != "all_nodes")


def accuses_own(report: Report | None, ranks: Sequence[int]) -> bool:
    """Whether this node alone finds something wrong that lies with ranks that run here, and with them alone."""
    verdict: Verdict | None = report.verdicts[0] if report is not None and report.verdicts else None
    return (
        verdict is not None
        and verdict.traits.accuses
        and bool(verdict.culprits)
        and set(verdict.culprits) <= set(ranks)
    )
