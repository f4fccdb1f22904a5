"""The life of incidents: suspected, looked at, judged, told, escalated, resolved. Pure: decides and does nothing."""

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from stallwatch.config import Config
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents import judged, life_cycle, looking, shared, silence, slowness
from stallwatch.incidents.afterwards import REQUESTED, afterwards
from stallwatch.incidents.escalation import deserved, is_held, planned
from stallwatch.incidents.incident_names import incident_id
from stallwatch.incidents.life import ENDS_TOGETHER_NS, Family, IncidentLife, IncidentTable, died, numbered
from stallwatch.incidents.looking import noted
from stallwatch.incidents.messages import (
    Acknowledged,
    Action,
    BundleMoved,
    Captured,
    CaptureWanted,
    Event,
    FleetSaid,
    MaintenanceWanted,
    ModeWanted,
    MuteWanted,
    Note,
    Save,
    StartCapture,
    VerdictJudged,
)
from stallwatch.incidents.sampled import with_sampled_verdict
from stallwatch.model.finding import Finding
from stallwatch.model.incident import UNTOLD, Incident, IncidentEvent, Severity
from stallwatch.model.snapshot import JobKey
from stallwatch.progress.patience import Plan

_NEWS_NS = 30_000_000_000  # between looks at a slow rank whose cost has changed
_SAME_MOMENT_NS = 2_000_000_000


class Now:
    """One moment of the node as the engine sees it."""

    def __init__(
        self,
        at_ns: int,
        wall_ns: int,
        node: str,
        findings: Sequence[Finding],
        jobs: Sequence[JobFacts],
        boot_ns: int = 0,
    ) -> None:
        """`boot_ns`: CLOCK_BOOTTIME; 0: not known."""
        self.at_ns = at_ns
        self.wall_ns = wall_ns
        self._boot_ns = boot_ns
        self.node = node
        self.findings = tuple(findings)
        self.jobs = {facts.job: facts for facts in jobs}

    def of(self, job: JobKey, family: Family) -> tuple[Finding, ...]:
        """The findings of this kind about a job."""
        return tuple(f for f in self.findings if f.job == job and f.family == family)

    def began_wall_ns(self, facts: JobFacts | None) -> int | None:
        """When a job was started, by the clock that people read; None: not known."""
        known = facts is not None and 0 < facts.began_ns <= self._boot_ns
        return self.wall_ns - (self._boot_ns - facts.began_ns) if known and facts is not None else None


class Engine:
    """Events in, actions out: a pure step over the table of incidents; it keeps nothing but the configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def advance(
        self, lives: IncidentTable, events: Sequence[Event], now: Now
    ) -> tuple[IncidentTable, tuple[Action, ...]]:
        """Given the state, what happened since, and the node now, return the next state and what must be done.

        It may be called at any moment between ticks with the last tick's findings and new events.
        """
        actions: list[Action] = []
        before = lives
        for event in events:
            lives = self._heard(lives, event, now, actions)
        is_off = silence.mode_of(lives, self._config, now.at_ns) == "off"
        for job, family in dict.fromkeys((f.job, f.family) for f in now.findings if not (is_off or f.may_pass)):
            confirmed = any(finding.stage == "confirmed" for finding in now.of(job, family))
            if life_cycle.may_open(lives, job, family, now.jobs.get(job), now.at_ns, confirmed=confirmed):
                lives = self._open(lives, job, family, now, actions)
        kept = []
        for life in lives.active:
            lived = self._live(life, lives, now, actions)
            end = life_cycle.end_of(lived, now.of(lived.incident.job, lived.family), now.jobs, now.at_ns)
            # What is told now must be seen as open once, or outputs would never tell it.
            told_now = lived.incident.severity != life.incident.severity
            was = before.find(lived.incident.incident_id)
            if end is None or told_now or shared.awaits_its_teller(was, lived, end.state, now.at_ns):
                kept.append(lived)
            else:
                facts = now.jobs.get(lived.incident.job)
                lives = life_cycle.end(lives, lived, end, facts, now.at_ns, now.wall_ns, actions)
        return replace(lives, active=tuple(kept)), tuple(actions)

    def _heard(self, lives: IncidentTable, event: Event, now: Now, actions: list[Action]) -> IncidentTable:
        if isinstance(event, MuteWanted | ModeWanted | MaintenanceWanted):
            return silence.heard(lives, event, now.at_ns)
        if isinstance(event, CaptureWanted):
            return self._requested(lives, event.job, now, actions)
        if isinstance(event, VerdictJudged):
            return judged.heard(lives, event, now.wall_ns, actions)
        life = lives.find(event.incident_id)
        if life is None and isinstance(event, FleetSaid):
            return shared.said_of_past(lives, event, now.wall_ns, actions)
        if life is None:
            return _moved_of_past(lives, event) if isinstance(event, BundleMoved) else lives
        if isinstance(event, Acknowledged):
            heard = _acknowledged(life, event.by, now.wall_ns, actions)
        elif isinstance(event, BundleMoved):
            elsewhere = replace(life.incident, bundle=event.bundle)
            what = f"evidence lies in {event.bundle}: {event.why}"
            heard = replace(life, incident=noted(elsewhere, what, now.wall_ns, actions))
        elif isinstance(event, FleetSaid):
            heard = shared.said(life, event, now.at_ns, now.wall_ns, actions)
        elif isinstance(event, Captured):
            heard = looking.captured(life, event, now.wall_ns, actions)
        else:
            facts = now.jobs.get(life.incident.job)
            heard = looking.judged(life, event, self._config, now.at_ns, now.wall_ns, actions, lives.past, facts)
        return replace(lives, active=tuple(heard if one is life else one for one in lives.active))

    def _requested(self, lives: IncidentTable, job: JobKey, now: Now, actions: list[Action]) -> IncidentTable:
        for life in lives.active:
            if life.incident.job == job and life.family in ("hang", "request"):
                sooner = replace(life, next_look_ns=now.at_ns)
                return replace(lives, active=tuple(sooner if one is life else one for one in lives.active))
        return self._open(lives, job, "request", now, actions)

    def _open(
        self, lives: IncidentTable, job: JobKey, family: Family, now: Now, actions: list[Action]
    ) -> IncidentTable:
        ordinals = numbered(lives.ordinals, job)
        findings = now.of(job, family)
        what = "; ".join(f.reason for f in findings) or REQUESTED
        since_ns = min((f.since_ns for f in findings), default=now.at_ns)
        # Of little slowness it takes minutes to be seen, and people ask what was changed when it began.
        seen_late_ns = now.at_ns - since_ns if family == "slow" else 0
        incident = Incident(
            incident_id=incident_id(job, ordinals[job]),
            job=job,
            node=now.node,
            state="open" if family == "request" else "suspect",
            severity="none",
            opened_wall_ns=now.wall_ns - seen_late_ns,
            since_ns=since_ns,
            findings=findings,
            report=None,
            bundle=f"{self._config.daemon.state_directory}/incidents/{incident_id(job, ordinals[job])}",
            job_began_wall_ns=now.began_wall_ns(now.jobs.get(job)),
            events=(IncidentEvent(now.wall_ns, f"suspected: {what}" if findings else what),),
            together=shared.begin_together(family, now.jobs.get(job), self._config),
        )
        facts = now.jobs.get(job)
        began_ns = facts.began_ns if facts is not None else 0
        if family == "health":
            life = IncidentLife(incident, family, began_ns=began_ns)
            actions += [Note(incident.incident_id, what), Save(incident)]
            return replace(lives, active=(*lives.active, life), ordinals=tuple(ordinals.items()))
        life = IncidentLife(incident, family, looks=1, look_ns=now.at_ns, capturing=True)
        if family == "drift":
            incident = with_sampled_verdict(incident, now.wall_ns)
            life = IncidentLife(incident, family, looks=1, look_ns=now.at_ns, capturing=True, judged_look=1)
        if family == "request":
            later = now.at_ns + int(self._config.stall.second_look_seconds * 1e9)
            life = replace(life, confirmed_ns=later, next_look_ns=later)
        if died(findings):
            life = looking.after_a_death(incident, family, now.at_ns)
        life = replace(life, began_ns=began_ns)
        actions += [Note(incident.incident_id, what), Save(incident)]
        actions += [StartCapture(incident, 1)] if life.capturing else []
        return replace(lives, active=(*lives.active, life), ordinals=tuple(ordinals.items()))

    def _live(self, life: IncidentLife, lives: IncidentTable, now: Now, actions: list[Action]) -> IncidentLife:
        life = _with_findings(life, now.of(life.incident.job, life.family), now.at_ns)
        life = looking.with_what_is_sure_now(life, now.at_ns, now.wall_ns, actions)
        life = looking.with_new_waits(life, now.jobs.get(life.incident.job), now.at_ns)
        if life_cycle.is_to_be_judged(life, now.jobs.get(life.incident.job)):
            life = replace(life, confirmed_ns=now.at_ns)
        if silence.mode_of(lives, self._config, now.at_ns) != "off":
            life = looking.look_and_judge(life, self._config, now.at_ns, actions)
        if life_cycle.is_over(life.incident, now.jobs.get(life.incident.job)):  # who is told of it now is told that
            over = afterwards(life.incident, ended=True)
            over = over if over.job_over else replace(over, job_over=True)
            life = life if over is life.incident else replace(life, incident=over)
        return self._told(life, lives, now, actions)

    def _told(self, life: IncidentLife, lives: IncidentTable, now: Now, actions: list[Action]) -> IncidentLife:
        facts = now.jobs.get(life.incident.job)
        plan = planned(life, facts, self._config, now)
        held = is_held(life, plan, now.at_ns)
        severity = "none" if held else deserved(life.incident.severity, plan, now.at_ns)
        life = looking.look_before(life, plan.next_ns(now.at_ns), now.at_ns)
        incident = life.incident
        reason = silence.silence(lives, incident, facts, self._config, now.at_ns)
        if reason and incident.severity == "none":
            if severity != "none" and (not incident.muted or severity != incident.withheld):
                kept_back = replace(incident, muted=True, withheld=severity)
                what = f"{UNTOLD}: {reason}; it would have been told as {severity}"
                incident = noted(kept_back, what, now.wall_ns, actions)
        elif severity != incident.severity:
            what = _said_now(incident, severity, reason)
            state = "open" if life.family == "health" else incident.state
            told = replace(incident, severity=severity, state=state, muted=bool(reason), withheld="none")
            if incident.severity == "none" and incident.verdict is not None and not incident.waits_on:
                told = replace(told, waits_on=incident.verdict.waits_on)
            incident = noted(told, what, now.wall_ns, actions)
        elif incident.muted != bool(reason) and incident.severity != "none":
            incident = noted(replace(incident, muted=bool(reason)), reason or "no longer silent", now.wall_ns, actions)
        elif severity == "none" and incident.verdict is not None and not held:
            incident = _not_yet(incident, plan, now, actions)
        if severity != "none" and incident.tell_reason:
            incident = replace(incident, tell_wall_ns=None, tell_reason="")
        return life if incident is life.incident else replace(life, incident=incident)


def _said_now(incident: Incident, severity: Severity, silent: str) -> str:
    """How the history has it that an incident deserves more now: what has been told to somebody, and what to nobody
    (delivery_steps.due). `silent`: why nobody may be told."""
    if incident.told_elsewhere:
        return f"{UNTOLD} of it by this node, as {severity}: {incident.told_elsewhere}"
    if incident.severity == "none":
        return f"told as {severity}"
    why = silent or (f"{incident.acknowledged_by} is on it" if incident.acknowledged_by else "")
    return f"{UNTOLD} that it is {severity} now: {why}" if why else f"escalated to {severity}"


def _not_yet(incident: Incident, plan: Plan, now: Now, actions: list[Action]) -> Incident:
    """Say once why nobody is told yet, and when: who looks at a verdict that wakes nobody must not take it for a
    fault."""
    next_ns = plan.next_ns(now.at_ns)
    wall_ns = None if next_ns is None else now.wall_ns + next_ns - now.at_ns
    shown_ns = incident.tell_wall_ns
    if wall_ns is not None and shown_ns is not None and abs(wall_ns - shown_ns) < _SAME_MOMENT_NS:
        wall_ns = shown_ns  # clocks that drift apart by milliseconds
    if (wall_ns, plan.why) == (shown_ns, incident.tell_reason):
        return incident
    incident = replace(incident, tell_wall_ns=wall_ns, tell_reason=plan.why)
    what = f"{UNTOLD} yet: {plan.why}"
    if not plan.why or any(event.what.startswith(what) for event in incident.events):
        return incident
    if wall_ns is not None:
        what += f"; told at {datetime.fromtimestamp(wall_ns // 10**9, UTC):%H:%M:%S} UTC unless it moves"
    return noted(incident, what, now.wall_ns, actions)


def _moved_of_past(lives: IncidentTable, event: BundleMoved) -> IncidentTable:
    past = tuple(
        replace(incident, bundle=event.bundle) if incident.incident_id == event.incident_id else incident
        for incident in lives.past
    )
    return replace(lives, past=past)


def _acknowledged(life: IncidentLife, by: str, wall_ns: int, actions: list[Action]) -> IncidentLife:
    if life.incident.acknowledged_by == by:
        return life
    incident = replace(life.incident, acknowledged_by=by)
    return replace(life, incident=noted(incident, f"acknowledged by {by}", wall_ns, actions))


def _with_findings(life: IncidentLife, findings: tuple[Finding, ...], at_ns: int) -> IncidentLife:
    if not findings:
        return life if life.quiet_since_ns is not None else replace(life, quiet_since_ns=at_ns)
    before = life.incident.findings
    if findings != before:
        life = replace(life, incident=replace(life.incident, findings=findings))
    if life.adopted_ns is not None and life.incident.severity == "none":
        life = replace(life, next_look_ns=at_ns)  # nobody is woken by what a daemon before this one saw
    life = replace(life, quiet_since_ns=None, adopted_ns=None)
    confirmed = any(f.stage == "confirmed" for f in findings)
    verdict = life.incident.verdict
    if life.confirmed_ns is None and confirmed:
        life = replace(life, confirmed_ns=at_ns)
        if all(f.resolvable for f in findings) and life.family not in ("health", "drift"):
            life = replace(life, next_look_ns=at_ns)  # the second look
    if life.family == "slow" and not (life.capturing or life.judging) and slowness.has_changed(life.incident):
        due = life.look_ns + _NEWS_NS
        life = replace(life, next_look_ns=max(due, at_ns) if life.next_look_ns is None else min(due, life.next_look_ns))
    final = {f.detector for f in findings if not f.resolvable} - {f.detector for f in before if not f.resolvable}
    if final and (verdict is None or not verdict.traits.accuses or life.incident.severity == "none"):
        # What was seen before a death or a stop does not show it.
        life = replace(life, next_look_ns=at_ns + (ENDS_TOGETHER_NS if died(findings) and not died(before) else 0))
    return life


def adopt(
    incidents: Sequence[tuple[Incident, int]],
    ordinals: Sequence[tuple[JobKey, int]],
    past: Sequence[Incident],
    at_ns: int,
) -> IncidentTable:
    """Given (incident, looks) left open by the last daemon and ordinals of the store, return the state to begin with.

    What was told stays told; an incident whose symptom is not seen again within a minute is resolved.
    """
    lives = []
    for incident, looks in incidents:
        families = {finding.family for finding in incident.findings} or {"hang"}
        # Another boot's clock means nothing here.
        since_ns, verdict_since_ns = min(incident.since_ns, at_ns), min(incident.verdict_since_ns or at_ns, at_ns)
        lives.append(
            IncidentLife(
                replace(incident, since_ns=since_ns, verdict_since_ns=verdict_since_ns if incident.report else None),
                "hang" if "hang" in families else min(families),
                looks=max(looks, 1),
                judged_look=max(looks, 1) if incident.report else 0,
                confirmed_ns=at_ns,
                adopted_ns=at_ns,
            )
        )
    return IncidentTable(active=tuple(lives), past=tuple(past), ordinals=tuple(ordinals))
