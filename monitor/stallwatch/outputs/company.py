"""Jobs that stand together at one file system or server: one message names it and all of them. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from stallwatch.incidents.delivery_steps import Step, covered, verdict_key
from stallwatch.model.incident import Incident
from stallwatch.outputs.spool import Spool

_MOST_NAMED = 8
_NAMING: tuple[Step, ...] = ("told", "updated", "escalated")
_SPARED: tuple[Step, ...] = (*_NAMING, "acknowledged", "resolved")  # of who was named; that it has died is told


def beside(incident: Incident, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
    """Other jobs' incidents that stand at what this one waits for, whether people were told of them or not."""
    on = waits_on(incident)
    others = [one for one in incidents if one.job != incident.job and not one.is_over and not one.muted]
    return tuple(one for one in others if on and waits_on(one) == on)


def waits_on(incident: Incident) -> str:
    """ "nfs4 filer:/vol"; "" where it stands at nothing that others may wait for."""
    verdict = incident.verdict
    return incident.waits_on or (verdict.waits_on if verdict is not None else "")


def together_words(incident: Incident, others: Sequence[Incident]) -> str:
    """What a headline begins with: "3 jobs wait for nfs4 filer:/vol (a, b, c): "; "" of one alone."""
    names = list(dict.fromkeys([incident.job.training_job, *(one.job.training_job for one in others)]))
    if not others:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{len(others) + 1} jobs wait for {waits_on(incident)} ({', '.join(names[:_MOST_NAMED])}{more}): "


def with_named(spool: Spool, incident: Incident, step: Step, others: Sequence[Incident]) -> Spool:
    """Given a message that is queued, note whom it names beside its incident: they need none of their own while it
    stands. Whom people were told of, or another node tells of, is not among them; nor is the incident itself, of whom
    another's message was."""
    named = {
        one.incident_id: incident.incident_id
        for one in others
        if step in _NAMING and not one.told_elsewhere and _needs_one(one, spool, incident)
    }
    company = {one: teller for one, teller in spool.company.items() if one != incident.incident_id} | named
    return spool if company == spool.company else replace(spool, company=company)


def _needs_one(named: Incident, spool: Spool, incident: Incident) -> bool:
    """Who has no message of its own; where another's names it already, a more urgent one is what people go by."""
    if named.incident_id in spool.company:
        return incident.severity == "critical"
    return "told" not in spool.told.get(named.incident_id, ())


def spared(spool: Spool, incident: Incident, step: Step, incidents: Mapping[str, Incident]) -> Spool | None:
    """The spool with this step as told, where a message that stands has named the incident; None where it needs one:
    that it is critical nobody has heard whose message was of a warning."""
    teller = incidents.get(spool.company.get(incident.incident_id, ""))
    if teller is None or step not in _SPARED:
        return None
    if "escalated" in covered(incident, step) and not (teller.severity == "critical" or teller.acknowledged_by):
        return None
    return spool.with_told(incident.incident_id, covered(incident, step), verdict_key(incident), incident.job.owner)


def dissolved(spool: Spool, incidents: Mapping[str, Incident]) -> Spool:
    """Without those whose message does not stand any more: who still waits is told of by itself."""
    if not spool.company:
        return spool
    left = {
        one: teller
        for one, teller in spool.company.items()
        if one in incidents
        and not (incidents[one].is_over and {"resolved", "ended"} & set(spool.told.get(one, ())))
        and (incidents[one].is_over or (teller in incidents and _stands(incidents[teller])))
        and waits_on(incidents[one]) != ""
    }
    if left == spool.company:
        return spool
    told = {one: steps for one, steps in spool.told.items() if one in left or not _is_alone(one, spool, incidents)}
    return replace(spool, company=left, told=told)


def _is_alone(one: str, spool: Spool, incidents: Mapping[str, Incident]) -> bool:
    return one in spool.company and one in incidents and not incidents[one].is_over


def _stands(incident: Incident) -> bool:
    return not (incident.is_over or incident.muted or incident.told_elsewhere)
