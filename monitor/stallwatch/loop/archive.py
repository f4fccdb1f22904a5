"""Incidents across the daemon's own lives: what is taken over at start, and what goes when there is no room."""

import logging

from stallwatch.config import IncidentSection
from stallwatch.incidents.engine import adopt
from stallwatch.incidents.life import Lives
from stallwatch.incidents.store import IncidentStore

log = logging.getLogger("stallwatch.incidents")

_PAST = 20


def taken_over(store: IncidentStore, at_ns: int) -> Lives:
    """Return the lives that a daemon before this one left in the store."""
    left = store.left_open()
    open_ids = {incident.incident_id for incident, _ in left}
    for incident_id in sorted(open_ids):
        log.info("incident=%s taken over from the last daemon", incident_id)
    past = [incident for incident in store.newest(_PAST) if incident.incident_id not in open_ids]
    return adopt(left, store.ordinals(), past, at_ns)


def make_room(store: IncidentStore, lives: Lives, limits: IncidentSection, wall_ns: int) -> None:
    """Remove what is older or more than is kept; never what is open."""
    keep = {life.incident.incident_id for life in lives.active}
    for name in store.retain(limits.keep_bytes, wall_ns - int(limits.keep_seconds * 1e9), keep):
        log.info("incident=%s removed: older or more than is kept (incidents.keep_*)", name)
