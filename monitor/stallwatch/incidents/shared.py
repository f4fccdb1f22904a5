"""An incident that other nodes of the job see too: whose verdict it shows, and who tells of it. Pure."""

from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.config import Config
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents.afterwards import afterwards
from stallwatch.incidents.delivery_steps import verdict_key
from stallwatch.incidents.life import Family, IncidentLife, IncidentTable
from stallwatch.incidents.looking import named, noted, with_report
from stallwatch.incidents.messages import Action, FleetSaid
from stallwatch.model.incident import NO_RANKS, SEVERITIES, Incident, IncidentState, Together, is_last
from stallwatch.model.verdict import Report


def begin_together(family: Family, facts: JobFacts | None, config: Config) -> Together | None:
    """Return how a new incident begins: shared where the job has ranks that are not here. Slowness and health are each
    node's own."""
    if not config.fleet.url or family != "hang" or facts is None or facts.world_size <= len(facts.ranks):
        return None
    return Together(why="the job's nodes have not agreed yet which of them tells")


_TELLER_SECONDS = 120.0  # that nodes take at most to agree who tells, the meeting place away or not


def awaits_its_teller(before: IncidentLife | None, life: IncidentLife, end: IncidentState, at_ns: int) -> bool:
    """Given a life as it was and is, and how it would end: whether its end must wait. Where all ranks of this node have
    died, the job is over here before its nodes have agreed who tells of it; what ends untold nobody tells."""
    incident = life.incident
    together = incident.together
    if end != "ended" or together is None or incident.severity == "none" or incident.muted or together.told is not None:
        return False
    if together.speaks:  # outputs must see once that it is this node's to tell
        was = before.incident.together if before is not None else None
        return was is None or not was.speaks
    return life.confirmed_ns is not None and at_ns - life.confirmed_ns < int(_TELLER_SECONDS * 1e9)


def ended_here(incident: Incident) -> Incident:
    """The incident of a job that is over on this node: where its ranks are gone, those of others may stand still, and
    the end is the job's. Whose it is to tell, the nodes agree anew."""
    together = incident.together
    if incident.state != "ended" or together is None:
        return incident
    return replace(incident, together=replace(together, speaks=False, why=NO_RANKS))


def said(life: IncidentLife, event: FleetSaid, at_ns: int, wall_ns: int, actions: list[Action]) -> IncidentLife:
    """Take in where this node stands, and the job's verdict."""
    before = said_of(life.incident, event, wall_ns, actions)
    life, report = replace(life, incident=before), _of_the_job(before, event)
    if report is not None:
        life = with_report(life, report, at_ns)
        life = replace(life, incident=_noted_news(before, life.incident, event, wall_ns, actions))
    return replace(life, incident=_as_told(life.incident, at_ns, wall_ns, actions))


def _as_told(incident: Incident, at_ns: int, wall_ns: int, actions: list[Action]) -> Incident:
    """The incident as people were told of it, by whichever node, where they were told this verdict: for how long it has
    been the same, and how urgent it is. A node that hears of it later, and takes over who told, goes on with that."""
    told = incident.together.told if incident.together is not None else None
    key = verdict_key(incident)
    if told is None or is_last(told) or not any(one.verdict == key for one in told.outputs.values()):
        return incident
    since_ns, known_ns = at_ns - int(told.seconds * SECOND_NS), incident.verdict_since_ns
    if known_ns is not None and since_ns < known_ns:
        incident = replace(incident, verdict_since_ns=since_ns)
    if incident.muted or SEVERITIES.index(told.severity) <= SEVERITIES.index(incident.severity):
        return incident
    what = f"another node has told it as {told.severity}"
    return noted(replace(incident, severity=told.severity, withheld="none"), what, wall_ns, actions)


def _of_the_job(incident: Incident, event: FleetSaid) -> Report | None:
    """The report with the job's verdict; None where what was known and told would be unknown again by it."""
    report, before = event.report, incident.verdict
    if report is None or not report.verdicts:
        return None
    told = before is not None and before.traits.accuses and incident.severity != "none"
    return None if told and not report.verdicts[0].traits.accuses else report


def _noted_news(before: Incident, judged: Incident, event: FleetSaid, wall_ns: int, actions: list[Action]) -> Incident:
    """Given an incident as it was, and with the job's verdict, return that with an event where it is another."""
    verdict = judged.verdict
    if verdict is None or _gist(before) == _gist(judged):
        return judged
    whose = f"of {event.together.nodes} nodes" if event.together.nodes else "of this node alone"
    what = f"verdict {whose}: {verdict.cause} ({verdict.confidence}): {verdict.summary}"
    return noted(judged, what, wall_ns, actions)


def _gist(incident: Incident) -> tuple[str, tuple[int, ...]] | None:
    verdict = incident.verdict
    return None if verdict is None else (verdict.cause, verdict.culprits)


def said_of(incident: Incident, event: FleetSaid, wall_ns: int, actions: list[Action]) -> Incident:
    """The incident with what other nodes say of it; adds to the actions."""
    before, now = incident.together, event.together
    known = now.told.waits_on if now.told is not None else incident.waits_on
    incident = replace(incident, together=now, waits_on=known)
    if before is not None and (before.speaks, before.incident_id) == (now.speaks, now.incident_id):
        return incident
    if now.speaks:
        known = f": told as {incident.severity}" if incident.severity != "none" and not incident.muted else ""
        return noted(incident, f"this node tells of it, as {incident.shared_id}{known}", wall_ns, actions)
    return noted(incident, f"as {incident.shared_id}: {now.why}", wall_ns, actions)


def said_of_past(lives: IncidentTable, event: FleetSaid, wall_ns: int, actions: list[Action]) -> IncidentTable:
    """The end of an incident may be this node's to tell though another has told its beginning; and the job's verdict
    may come when the job is over here."""
    past = tuple(
        _said_of_past(incident, event, wall_ns, actions) if incident.incident_id == event.incident_id else incident
        for incident in lives.past
    )
    return replace(lives, past=past)


def _said_of_past(incident: Incident, event: FleetSaid, wall_ns: int, actions: list[Action]) -> Incident:
    incident = replace(incident, together=event.together)
    report = _of_the_job(incident, event)
    if report is not None:
        judged = replace(incident, report=named(report, incident))
        incident = _noted_news(incident, judged, event, wall_ns, actions)
    return afterwards(incident, ended=incident.state == "ended")
