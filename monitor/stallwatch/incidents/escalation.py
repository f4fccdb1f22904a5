"""When to tell whom: the severity that an incident deserves now, silence not considered."""

from datetime import datetime
from typing import Protocol

from stallwatch.clock import SECOND_NS
from stallwatch.config import Config
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.formats.rank_ranges import ranks_in
from stallwatch.incidents import slowness
from stallwatch.incidents.life import IncidentLife, died, looks_soon
from stallwatch.model.incident import SEVERITIES, Incident, Severity
from stallwatch.model.verdict import Verdict
from stallwatch.progress.patience import Plan, Standstill, being_debugged, plan

# A look is begun before the moment of telling; a crowded node is not done with it by then. A build that was at work
# again was told of, and found to be at work seconds later (of 18 runnable processes on two cores: 12 s for a look).
_HELD_SECONDS = 5.0


class Clocks(Protocol):
    """The clocks at a tick."""

    @property
    def at_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        ...

    @property
    def wall_ns(self) -> int:
        """Unix epoch."""


def planned(life: IncidentLife, facts: JobFacts | None, config: Config, now: Clocks) -> Plan:
    """Return when somebody is told of this incident, silence not considered."""
    if life.quiet_since_ns is not None and life.adopted_ns is None:
        return Plan()  # the symptom has gone: what is over wakes nobody
    verdict = life.incident.verdict
    if life.adopted_ns is not None and (verdict is None or verdict.traits.state != "at_once"):
        return Plan()  # nor what may have passed while no daemon ran
    if life.family == "request" or life.confirmed_ns is None:
        return Plan()
    exited = died(life.incident.findings)
    if facts is not None and facts.ending and not exited:
        # A job on its way out gets its time; then the exit detector speaks.
        return Plan((), f"the job is ending ({config.tell.ending_seconds:g} s, tell.ending_seconds)")
    if life.family == "hang" and (facts is None or not facts.alive):
        if not _died(verdict, exited=exited, failed=facts is not None and facts.failed):
            return Plan((), "the job is over, and did not die of what was found")
        if looks_soon(life, now.at_ns):
            return Plan((), "it is still looked at how the job ended")
        return Plan(((now.at_ns, "warning" if verdict and verdict.confidence == "possible" else "critical"),))
    if life.family != "hang" and facts is not None and facts.debugged and not config.tell.terminals:
        return Plan((), being_debugged(facts.debugged))
    if life.family in ("health", "drift"):
        return Plan(((now.at_ns, "warning"),))
    if life.family == "slow":
        since_seconds = (now.at_ns - life.judged_look_ns) / SECOND_NS if life.judged_look_ns else 0.0
        why = slowness.untold(life.incident, verdict, config.slow.cost_share, since_seconds)
        return Plan((), why) if why else Plan(((now.at_ns, "warning"),))
    if verdict is None:
        failed = life.judgements_failed > 0 and (facts is None or facts.begun)
        at_ns = life.incident.since_ns + int(config.tell.undecided_seconds * SECOND_NS)
        return Plan(((at_ns, "warning"),) if failed else ())
    return plan(_standstill(life, verdict, facts, now), config)


def _died(verdict: Verdict | None, *, exited: bool, failed: bool) -> bool:
    """`exited`: its first end was a crash or a kill. Ranks that were seen to wait may have been ended as they stood, by
    signals; where one `failed` by itself, as at torch's own time-out, the job died of what they waited for."""
    if verdict is None or not verdict.traits.accuses:
        return False
    return verdict.traits.deadly or (exited and (failed or not verdict.waiting))


def deserved(before: Severity, plan: Plan, now_ns: int) -> Severity:
    """Once told, an incident is never taken back in its severity."""
    return max(before, plan.at(now_ns), key=SEVERITIES.index)


def is_held(life: IncidentLife, plan: Plan, now_ns: int) -> bool:
    """Whether telling for the first time, of what was given time to end by itself, waits some seconds more for the look
    that is under way."""
    first_ns = plan.stages[0][0] if plan.stages and plan.why else None
    if first_ns is None or not first_ns <= now_ns < first_ns + _HELD_SECONDS * SECOND_NS:
        return False
    looks = life.capturing or life.judging or life.judged_look < life.looks
    return life.family == "hang" and life.incident.severity == "none" and looks


def _standstill(life: IncidentLife, verdict: Verdict, facts: JobFacts | None, now: Clocks) -> Standstill:
    culprits, incident = set(verdict.culprits), life.incident
    has_others = facts is not None and len(facts.ranks) < facts.world_size
    return Standstill(
        verdict=verdict,
        since_ns=incident.since_ns,
        known_ns=now.at_ns if incident.verdict_since_ns is None else incident.verdict_since_ns,
        moved_ns=life.moved_ns,
        deadline_ns=_deadline_ns(incident, now),
        begun=facts is None or facts.begun,
        hooked=facts is None or facts.hooked,
        suspended=_is_suspended(verdict, facts),
        in_phase=facts is not None and any(rank in culprits for rank, _ in facts.phases),
        works=facts is not None and bool(culprits & set(facts.working)),
        phase_past_seconds=facts.phase_past_seconds if facts else 0.0,
        worked_ns=facts.worked_ns(ranks_in(verdict.waiting)) if facts and not facts.begun else 0,
        silent=incident.together.silent if incident.together is not None else (),
        elsewhere=incident.together is None and has_others,
        works_unseen=has_others or (facts is not None and facts.io_unseen),
        debugged=facts.debugged if facts else (),
        passing_ns=next((f.due_ns for f in incident.findings if (f.detector, f.stage) == ("stopped", "suspect")), None),
    )


def _deadline_ns(incident: Incident, now: Clocks) -> int | None:
    """The job's own time-out on our monotonic clock."""
    deadline = incident.report.deadline if incident.report else None
    if deadline is None:
        return None
    wall_ns = int(datetime.fromisoformat(deadline).timestamp()) * SECOND_NS
    return now.at_ns + wall_ns - now.wall_ns


def _is_suspended(verdict: Verdict, facts: JobFacts | None) -> bool:
    """Every rank of the job is stopped: somebody suspended it (a scheduler, Ctrl-Z), which one rank's stop is not."""
    return facts is not None and len(facts.alive) == facts.world_size > 1 and set(facts.alive) == set(verdict.culprits)
