"""How incidents begin and end: what may open one, what resolves it, and which suspicions are dropped."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents import shared
from stallwatch.incidents.afterwards import REQUESTED, afterwards
from stallwatch.incidents.life import Cooldown, Family, IncidentLife, IncidentTable, died, looks_soon
from stallwatch.incidents.looking import noted
from stallwatch.incidents.messages import Action, CancelCapture, Discard
from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey

_QUIET_NS = 1_500_000_000  # one tick without the finding may be a sensor that did not answer
_HEALTHY_AGAIN_NS = 60_000_000_000  # temperatures and counters come and go
_VERDICT_SECONDS = 90.0  # how long a job's end waits for the verdict on what ended it
_REQUEST_SECONDS = 120.0
_ADOPTED_SECONDS = 60.0
_UNSEEN_SECONDS = 10.0  # the first look after a start may come before the sensors' children are up
_KEPT_PAST = 20  # of each user: nobody's rubbish is the end of another's past
_MOST_OPEN = 32  # of each user on one node
_COOLDOWN_SECONDS = 30.0
_LONGEST_COOLDOWN_SECONDS = 3600.0


def may_open(
    lives: IncidentTable, job: JobKey, family: Family, facts: JobFacts | None, at_ns: int, *, confirmed: bool = False
) -> bool:
    """A symptom opens an incident unless one is open for it, it was a false alarm just now, or the job is long over.
    What is `confirmed` is no suspicion: it waits for nothing."""
    if any(life.incident.job == job and life.family == family for life in lives.active):
        return False
    cooled = any(c.job == job and c.family == family and c.until_ns > at_ns for c in lives.cooldowns)
    if cooled and not confirmed:
        return False
    if sum(life.incident.job.owner == job.owner for life in lives.active) >= _MOST_OPEN:
        return False  # its turn comes when others of its user are over
    over = facts is not None and not facts.alive
    return not (over and any(past.job == job and died(past.findings) for past in lives.past))


JOB_ENDED: Final = "the job ended"


class IncidentEnd(NamedTuple):
    """How an incident ends, and why."""

    state: Literal["resolved", "ended"]
    why: str


def end_of(
    life: IncidentLife, findings: tuple[Finding, ...], jobs: Mapping[JobKey, JobFacts], at_ns: int
) -> IncidentEnd | None:
    """Return how the incident is over, None while it is not."""
    job = life.incident.job
    facts = jobs.get(job)
    working = life.capturing or life.judging or life.next_look_ns is not None
    if life.family == "request":
        over = life.looks > 1 and life.judged_look >= life.looks and not working
        done = over or _age(life.incident.since_ns, at_ns) > _REQUEST_SECONDS
        return IncidentEnd("resolved", REQUESTED) if done else None
    adopted_seconds = None if life.adopted_ns is None else _age(life.adopted_ns, at_ns)
    if facts is None and adopted_seconds is not None and adopted_seconds < _UNSEEN_SECONDS:
        return None
    restarted = _is_restarted(life, facts)
    if facts is None or not facts.alive or restarted:
        if _is_owed(life, findings, at_ns):
            return None
        again = restarted or any(o.job.name == job.name and o.job != job and o.alive for o in jobs.values())
        return IncidentEnd("ended", "the job was restarted" if again else JOB_ENDED)
    if findings or life.family == "drift":
        return None  # what a job has computed since it drifted stays wrong
    if adopted_seconds is not None and adopted_seconds < _ADOPTED_SECONDS and not facts.moved:
        return None
    if life.quiet_since_ns is None or (at_ns - life.quiet_since_ns < _QUIET_NS and not facts.moved):
        return None
    if life.family == "health":
        again_well = at_ns - life.quiet_since_ns >= _HEALTHY_AGAIN_NS
        return IncidentEnd("resolved", "what was found is no longer so") if again_well else None
    if life.family == "slow":
        return IncidentEnd("resolved", "the job is no longer held back")
    stood = _age(life.incident.since_ns, at_ns)
    return IncidentEnd(
        "resolved", f"the job moves again after {_lasting(stood)}" if facts.moved else "the symptom is gone"
    )


def _is_restarted(life: IncidentLife, facts: JobFacts | None) -> bool:
    """Whether a job of this name lives of which every process is younger than those that stood: one that was started
    at the same address and has the same name does not move again."""
    return facts is not None and 0 < life.began_ns < facts.oldest_ns


def _is_owed(life: IncidentLife, findings: tuple[Finding, ...], at_ns: int) -> bool:
    """A verdict on what ended the job is still to come."""
    if life.confirmed_ns is None or life.family == "health":
        return False
    # A look that was lost (a crowded node, a full disk) says nothing; of the dead another one shows as much.
    if life.judgements_failed and not died(findings):
        return False
    verdict = life.incident.verdict
    if verdict is None:
        return _age(life.confirmed_ns, at_ns) < _VERDICT_SECONDS
    # It died of something after a look that did not tell why it stood, or of which nobody was told.
    unsaid = not verdict.traits.accuses or life.incident.severity == "none"
    asked = unsaid and died(findings) and (looks_soon(life, at_ns) or life.judged_look < life.looks)
    return asked and _age(max(life.look_ns, life.confirmed_ns), at_ns) < _VERDICT_SECONDS


def is_to_be_judged(life: IncidentLife, facts: JobFacts | None) -> bool:
    """A job that stood, not for long enough to be sure, and is gone now: what was seen of it is all that there will
    be. One that ended in order had moved again."""
    gone = facts is None or not facts.alive
    in_order = facts is not None and facts.finished
    looked = life.looks > 0 and life.adopted_ns is None
    return gone and not in_order and looked and life.family == "hang" and life.confirmed_ns is None


def is_over(incident: Incident, facts: JobFacts | None) -> bool:
    """Whether no process of the whole job is left, as far as this node sees it whole."""
    whole = facts is not None and len(facts.ranks) >= facts.world_size and incident.together is None
    return whole and facts is not None and not facts.alive


def end(
    lives: IncidentTable,
    life: IncidentLife,
    end: IncidentEnd,
    facts: JobFacts | None,
    at_ns: int,
    wall_ns: int,
    actions: list[Action],
) -> IncidentTable:
    """Return the state without this life: kept among the past when it said something or the job ended as it stood,
    else dismissed."""
    if life.capturing:
        actions.append(CancelCapture(life.incident.incident_id))
    verdict = life.incident.verdict
    said_something = verdict is not None and verdict.traits.accuses
    if not (life.incident.severity != "none" or said_something or life.family == "request" or _stood(life, end, facts)):
        actions.append(Discard(life.incident))
        return replace(
            lives, dismissed_total=lives.dismissed_total + 1, cooldowns=_cooled(lives.cooldowns, life, at_ns)
        )
    over = replace(
        life.incident, state=end.state, resolved_wall_ns=wall_ns, resolution=end.why, tell_wall_ns=None, tell_reason=""
    )
    over = afterwards(replace(over, job_over=end.state == "ended"), ended=end.state == "ended")
    over = noted(shared.ended_here(over), f"{end.state}: {end.why}", wall_ns, actions)
    return replace(lives, past=_kept((over, *lives.past)))


def _stood(life: IncidentLife, end: IncidentEnd, facts: JobFacts | None) -> bool:
    """Somebody, or something, ended a job that stood still: that is when its evidence is needed."""
    verdict = life.incident.verdict
    moved = (facts is not None and facts.finished) or (verdict is not None and verdict.cause == "healthy")
    return end.state == "ended" and life.family == "hang" and life.looks > 0 and not moved


def _kept(past: tuple[Incident, ...]) -> tuple[Incident, ...]:
    seen: Counter[str] = Counter()
    kept = []
    for incident in past:
        seen[incident.job.owner] += 1
        if seen[incident.job.owner] <= _KEPT_PAST:
            kept.append(incident)
    return tuple(kept)


def _cooled(cooldowns: tuple[Cooldown, ...], life: IncidentLife, at_ns: int) -> tuple[Cooldown, ...]:
    if life.family != "slow":
        return cooldowns  # a hang is never looked at too often: its limit must pass each time
    job, longest_ns = life.incident.job, int(_LONGEST_COOLDOWN_SECONDS * SECOND_NS)
    times = next((c.times + 1 for c in cooldowns if c.job == job and c.family == life.family), 1)
    until_ns = at_ns + min(int(_COOLDOWN_SECONDS * 2 ** (times - 1) * SECOND_NS), longest_ns)
    others = tuple(c for c in cooldowns if c.job != job and c.until_ns + longest_ns > at_ns)
    return (*others, Cooldown(job, life.family, until_ns, times))


def _lasting(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _age(since_ns: int, at_ns: int) -> float:
    return (at_ns - since_ns) / SECOND_NS
