"""What people say of verdicts afterwards: counted by cause, so that a month has a precision."""

from msgspec.structs import replace

from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.looking import noted
from stallwatch.incidents.messages import Action, VerdictJudged
from stallwatch.model.incident import Incident, JudgedCount, Judgement
from stallwatch.model.verdict import Cause


def heard(lives: IncidentTable, event: VerdictJudged, wall_ns: int, actions: list[Action]) -> IncidentTable:
    """Note it with the incident, wherever that is by now; the same said again changes nothing."""
    life = lives.find(event.incident_id)
    past = next((one for one in lives.past if one.incident_id == event.incident_id), None)
    known = life.incident if life is not None else past or event.incident
    if known.verdict is None or known.judged == event.judgement:
        return lives
    said = replace(known, judged=event.judgement)
    said = noted(said, f"its verdict was {event.judgement}, says {event.by}", wall_ns, actions)
    return replace(
        lives,
        active=tuple(replace(one, incident=said) if one is life else one for one in lives.active),
        past=tuple(said if one is past else one for one in lives.past),
        judged=_counted(lives.judged, known, event.judgement),
    )


def _counted(before: tuple[JudgedCount, ...], incident: Incident, judgement: Judgement) -> tuple[JudgedCount, ...]:
    assert incident.verdict is not None
    counts: dict[tuple[Cause, Judgement], int] = {(one.cause, one.judgement): one.total for one in before}
    key = (incident.verdict.cause, judgement)
    counts[key] = counts.get(key, 0) + 1
    return tuple(JudgedCount(*each, total) for each, total in counts.items())
