"""Jobs that stand together at one file system or server: one message names it and all of them. Pure.

Of one node's jobs the node knows by itself, of those of other nodes by what these say where all meet
(fleet.company_seat). Of nodes that want to tell of one place, one at a time does, once it has heard whom the others'
messages name.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from stallwatch.incidents.delivery_steps import Step, covered, verdict_key
from stallwatch.model.incident import Companion, Gathering, Incident, NodeReport, Severity, StandsAt
from stallwatch.outputs.headline import headline, who
from stallwatch.outputs.spool import Spool

_MOST_NAMED = 8
_NAMING: tuple[Step, ...] = ("told", "updated", "escalated")
_SPARED: tuple[Step, ...] = (*_NAMING, "acknowledged", "resolved")  # of who was named; that it has died is told


class Around(NamedTuple):
    """Who stands at a tick: incidents of this node, and of others by what they say."""

    own: Mapping[str, Incident]
    others: Mapping[str, Companion]
    meetings: Sequence[Gathering] | None

    def teller(self, incident_id: str) -> Incident | Companion | None:
        """Who has the message that names an incident; None where it does not stand any more, as far as is known."""
        own = self.own.get(incident_id)
        if own is not None and not (own.is_over or own.muted or own.told_elsewhere):
            return own
        return self.others.get(incident_id)

    def meeting(self, incident: Incident, readers: str) -> Gathering | None:
        """Where those meet who stand where this one does."""
        at = (waits_on(incident), readers)
        return next((one for one in self.meetings or () if (one.waits_on, one.readers) == at), None)

    def has_heard(self, on: str) -> bool:
        """Whether others were heard who stand at a place, so that who is not among them does not."""
        return self.meetings is None or any(one.known for one in self.meetings if one.waits_on == on)


def around(report: NodeReport) -> Around:
    """Given what a node knows at a tick, return who stands."""
    others = {other.incident_id: other for meeting in report.meetings or () for other in meeting.others}
    return Around({one.incident_id: one for one in report.incidents}, others, report.meetings)


def beside(incident: Incident, report: NodeReport) -> tuple[Companion, ...]:
    """Other jobs' incidents that stand at what this one waits for, whether people were told of them or not."""
    on = waits_on(incident)
    here = [companion(one) for one in _here(incident, report.incidents)]
    there = [
        other for one in report.meetings or () if on and one.waits_on == on for other in one.others if not other.over
    ]
    found = {one.incident_id: one for one in (*there, *here) if one.incident_id != incident.shared_id}
    return tuple(found.values())


def _here(incident: Incident, incidents: Sequence[Incident]) -> list[Incident]:
    on = waits_on(incident)
    others = [one for one in incidents if one.job != incident.job and not one.is_over and not one.muted]
    return [one for one in others if on and waits_on(one) == on]


def companion(incident: Incident) -> Companion:
    """An incident as others are named it."""
    job = incident.job.training_job
    return Companion(
        incident.shared_id, job, incident.severity, headline(incident, "told"), incident.acknowledged_by
    )  # fmt: skip


def stands_at(incident: Incident, spool: Spool, readers: str, *, wants: bool) -> StandsAt | None:
    """What other nodes are told of an incident; None of one that is nobody's business there. No line of its code is in
    it: nodes say to each other what people let them (fleet.detail)."""
    on, verdict = waits_on(incident), incident.verdict
    if not on or incident.is_over or incident.muted or incident.told_elsewhere:
        return None
    said = f"{incident.job.training_job}: {f'{who(verdict)}: {verdict.cause}' if verdict is not None else 'stalled'}"
    known = incident.incident_id
    named = tuple(one for one, teller in spool.company.items() if teller == known)
    tells = "told" in spool.told.get(known, ()) and known not in spool.company
    return StandsAt(on, readers, replace(companion(incident), said=said, tells=tells, named=named), wants)


def waits_on(incident: Incident) -> str:
    """ "nfs4 filer:/vol"; "" where it stands at nothing that others may wait for."""
    verdict = incident.verdict
    return incident.waits_on or (verdict.waits_on if verdict is not None else "")


def together_words(incident: Incident, others: Sequence[Companion]) -> str:
    """What a headline begins with: "3 jobs wait for nfs4 filer:/vol (a, b, c): "; "" of one alone."""
    names = list(dict.fromkeys([incident.job.training_job, *(one.training_job for one in others)]))
    if not others:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{len(others) + 1} jobs wait for {waits_on(incident)} ({', '.join(names[:_MOST_NAMED])}{more}): "


def waits_its_turn(incident: Incident, step: Step, spool: Spool, readers: str, now: Around) -> bool:
    """Whether another node may be about to tell of it, or this one to name those of others: who has no message of its
    own has one only when it is this node's turn."""
    if now.meetings is None or not waits_on(incident) or step not in ("told", "escalated"):
        return False
    if "told" in spool.told.get(incident.incident_id, ()) and incident.incident_id not in spool.company:
        return False
    meeting = now.meeting(incident, readers)
    return meeting is None or not (meeting.known and meeting.speaks)


def with_named(
    spool: Spool, incident: Incident, step: Step, here: Sequence[Incident], meeting: Gathering | None
) -> Spool:
    """Given a message that is queued, note whom it names beside its incident: they need none of their own while it
    stands. Whom people were told of, or another node tells of, is not among them; nor is the incident itself, of whom
    another's message was."""
    others = [one.incident_id for one in _here(incident, here) if not one.told_elsewhere]
    named = [one for one in others if _needs_one(one, spool, incident.severity)]
    for one in meeting.others if meeting is not None else ():
        if not (one.tells or one.over) and _needs_one(one.incident_id, spool, incident.severity):
            named.append(one.incident_id)
    company = {one: teller for one, teller in spool.company.items() if one != incident.incident_id}
    company |= dict.fromkeys(named if step in _NAMING else (), incident.incident_id)
    return spool if company == spool.company else replace(spool, company=company)


def _needs_one(named: str, spool: Spool, severity: Severity) -> bool:
    """Who has no message of its own; where another's names it already, a more urgent one is what people go by."""
    return severity == "critical" if named in spool.company else "told" not in spool.told.get(named, ())


def spared(spool: Spool, incident: Incident, step: Step, now: Around) -> Spool | None:
    """The spool with this step as told, where a message that stands has named the incident; None where it needs one:
    that it is critical nobody has heard whose message was of a warning."""
    if incident.incident_id not in spool.company or step not in _SPARED:
        return None
    teller = now.teller(spool.company[incident.incident_id])
    urgent = teller is not None and (teller.severity == "critical" or teller.acknowledged_by)
    if "escalated" in covered(incident, step) and not urgent:
        return None
    return spool.with_told(incident.incident_id, covered(incident, step), verdict_key(incident), incident.job.owner)


def settled(spool: Spool, now: Around) -> Spool:
    """With whom other nodes' messages name, and without those whose message does not stand any more: who still waits
    is told of by itself."""
    return _dissolved(_joined(spool, now), now)


def _joined(spool: Spool, now: Around) -> Spool:
    tellers = [one for one in now.others.values() if one.tells and one.named]
    tellers.sort(key=lambda one: one.severity == "critical", reverse=True)
    named: dict[str, str] = {}
    for own in now.own.values() if tellers else ():
        teller = next((one for one in tellers if own.shared_id in one.named), None)
        known = spool.company.get(own.incident_id)
        if teller is None or known == teller.incident_id or own.is_over:
            continue
        is_news = "told" not in spool.told.get(own.incident_id, ()) if known is None else teller.severity == "critical"
        named |= {own.incident_id: teller.incident_id} if is_news else {}
    return replace(spool, company={**spool.company, **named}) if named else spool


def _dissolved(spool: Spool, now: Around) -> Spool:
    if not spool.company:
        return spool
    left = {one: teller for one, teller in spool.company.items() if _holds(one, teller, spool, now)}
    if left == spool.company:
        return spool
    told = {
        one: steps
        for one, steps in spool.told.items()
        if one in left or one not in spool.company or one not in now.own or now.own[one].is_over
    }
    return replace(spool, company=left, told=told)


def _holds(one: str, teller: str, spool: Spool, now: Around) -> bool:
    """Whether an incident still needs no message of its own. What is not heard yet is as it was."""
    own, ours = now.own.get(one), now.own.get(teller)
    if own is None:  # of another node: ours is the message
        return (
            ours is not None
            and now.teller(teller) is not None
            and (one in now.others or not now.has_heard(waits_on(ours)))
        )
    if own.is_over:
        return not {"resolved", "ended"} & set(spool.told.get(one, ()))
    on = waits_on(own)
    return on != "" and (now.teller(teller) is not None or not (ours is not None or now.has_heard(on)))
