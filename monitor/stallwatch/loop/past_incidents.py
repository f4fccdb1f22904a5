"""Incidents across the daemon's own lives: what is taken over at start, and what goes when there is no room."""

import logging

from msgspec.structs import replace

from stallwatch.config_sections import IncidentSection
from stallwatch.incidents.engine import adopt
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.store import MOST_REMOVED
from stallwatch.loop.kept_silences import KeptSilences
from stallwatch.loop.protocols import Store

log = logging.getLogger("stallwatch.incidents")

_PAST = 20


def taken_over(store: Store, silences: KeptSilences | None, at_ns: int) -> IncidentTable:
    """Return the lives that a daemon before this one left in the store, with what was silenced then."""
    left = store.left(_PAST)
    for incident_id in sorted(incident.incident_id for incident, _ in left.open):
        log.info("incident=%s taken over from the last daemon", incident_id)
    lives = adopt(left.open, left.ordinals, left.past, at_ns)
    return lives if silences is None else silences.resumed(lives, left.silences)


def joined(ours: IncidentTable, left: IncidentTable) -> IncidentTable:
    """Given our lives and what could be taken over only later, return both; of a job that we have an incident of, and
    of an incident that goes by the name of one of ours, ours stays."""
    ids, jobs = ({life.incident.incident_id for life in ours.active}, {life.incident.job for life in ours.active})
    active = [life for life in left.active if life.incident.incident_id not in ids and life.incident.job not in jobs]
    past = [incident for incident in left.past if incident.incident_id not in ids]
    ordinals = dict(left.ordinals)
    for job, ordinal in ours.ordinals:
        ordinals[job] = max(ordinal, ordinals.get(job, 0))
    muted, nodes = {mute.name for mute in ours.mutes}, {one.node for one in ours.maintenance}
    return replace(
        ours,
        active=(*ours.active, *active),
        past=(*ours.past, *past),
        ordinals=tuple(ordinals.items()),
        mutes=(*(mute for mute in left.mutes if mute.name not in muted), *ours.mutes),
        mode=ours.mode or left.mode,
        maintenance=(*(one for one in left.maintenance if one.node not in nodes), *ours.maintenance),
    )


def make_room(store: Store, lives: IncidentTable, limits: IncidentSection, wall_ns: int) -> bool:
    """Remove what is older or more than is kept; never what is open. Return whether there is more to remove."""
    keep = {life.incident.incident_id for life in lives.active}
    names = store.retain(limits.keep_bytes, wall_ns - int(limits.keep_seconds * 1e9), keep)
    for name in names:
        log.info("incident=%s removed: older or more than is kept (incidents.keep_*)", name)
    return len(names) >= MOST_REMOVED
