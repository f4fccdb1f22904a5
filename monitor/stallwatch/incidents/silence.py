"""Why nobody is told: a mode, a node that is worked on, a mute, the job's own wish. Pure.

What people say of it holds on this node at once; where nodes meet, on all of them (loop.fleet_orders).
"""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.config import Config
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents.life import IncidentTable, Maintenance, ModeSet, Mute
from stallwatch.incidents.messages import MaintenanceWanted, ModeWanted, MuteWanted
from stallwatch.model.incident import Incident, Mode, Telling

_MOST_MUTES_OF_USER = 256
_MOST_MUTES = 16_384  # in all, by age
_MOST_MAINTAINED = 1_024
_MOST_SAID = 20  # of each kind, to people


def heard(lives: IncidentTable, event: MuteWanted | ModeWanted | MaintenanceWanted, now_ns: int) -> IncidentTable:
    """Take in what somebody says; a time in the past ends what was said before."""
    if isinstance(event, MuteWanted):
        mute = Mute(event.training_job, event.until_ns, event.owner, event.by)
        return replace(lives, mutes=_with_mute(lives.mutes, mute, now_ns))
    if isinstance(event, ModeWanted):
        said = ModeSet(event.mode, event.until_ns, event.by) if event.until_ns > now_ns else None
        return replace(lives, mode=said)
    others = tuple(one for one in lives.maintenance if one.node != event.node and one.until_ns > now_ns)
    if event.until_ns <= now_ns:
        return replace(lives, maintenance=others)
    own = Maintenance(event.node, event.until_ns, event.by, event.why, event.jobs)
    return replace(lives, maintenance=(*others[1 - _MOST_MAINTAINED :], own))


class Kept(msgspec.Struct, frozen=True):
    """What people have said, as it outlives a daemon: each until a moment of the wall clock, since a boot's monotonic
    one means nothing to the next."""

    mutes: tuple[Mute, ...] = ()
    mode: ModeSet | None = None
    maintenance: tuple[Maintenance, ...] = ()


def kept(lives: IncidentTable, now_ns: int, wall_ns: int) -> Kept:
    """Return what holds now."""
    return _moved(Kept(lives.mutes, lives.mode, lives.maintenance), now_ns, wall_ns)


def resumed(said: Kept, now_ns: int, wall_ns: int) -> Kept:
    """Given what a daemon before this one kept, return what of it holds now, each until a moment of our clock."""
    return _moved(said, wall_ns, now_ns)


def _moved(said: Kept, from_ns: int, to_ns: int) -> Kept:
    """What holds at `from_ns`, told by another clock, which says `to_ns` now."""
    later = to_ns - from_ns
    mutes = (replace(one, until_ns=one.until_ns + later) for one in said.mutes if one.until_ns > from_ns)
    nodes = (replace(one, until_ns=one.until_ns + later) for one in said.maintenance if one.until_ns > from_ns)
    holds = said.mode is not None and said.mode.until_ns > from_ns
    mode = replace(said.mode, until_ns=said.mode.until_ns + later) if said.mode is not None and holds else None
    return Kept(tuple(mutes), mode, tuple(nodes))


def mode_of(lives: IncidentTable, config: Config, now_ns: int) -> Mode:
    """Return the mode that holds now."""
    said = _said_mode(lives, now_ns)
    return said.mode if said is not None else config.fleet.mode


def _said_mode(lives: IncidentTable, now_ns: int) -> ModeSet | None:
    """What somebody said, while it holds."""
    return lives.mode if lives.mode is not None and lives.mode.until_ns > now_ns else None


def silence(lives: IncidentTable, incident: Incident, facts: JobFacts | None, config: Config, now_ns: int) -> str:
    """Return why nobody may be told about this incident now, "" when people may."""
    if (mode := mode_of(lives, config, now_ns)) != "tell":
        said = _said_mode(lives, now_ns)
        return f"the mode is {mode}{_by(said.by) if said is not None else ' (fleet.mode)'}"
    job = incident.job
    for one in lives.maintenance:
        if one.until_ns > now_ns and (one.node == incident.node or job.name in one.jobs):
            return _maintained(one)
    for mute in lives.mutes:
        if mute.name == job.name and mute.until_ns > now_ns:
            return f"the job is muted{_by(mute.by)}"
    if facts is None:
        return ""
    if facts.opted_out:
        return "the job asked for silence (STALLWATCH_NOTIFY=off)"
    if facts.world_size < config.daemon.minimum_world_size:
        return f"the job has fewer than {config.daemon.minimum_world_size} ranks (daemon.minimum_world_size)"
    if config.tell.terminals:
        return ""
    if facts.in_terminal:
        return "the job runs in a terminal session (tell.terminals)"
    return ""


def shown(lives: IncidentTable, config: Config, now_ns: int) -> Telling:
    """Return what holds now, as people see it."""
    return Telling(mode_of(lives, config, now_ns), tuple(_said(lives, config, now_ns)))


def _said(lives: IncidentTable, config: Config, now_ns: int) -> Iterator[str]:
    mode = mode_of(lives, config, now_ns)
    if mode != "tell":
        what = "no rank is looked at, and nobody is told" if mode == "off" else "nobody is told"
        set_by = _said_mode(lives, now_ns)
        whose = f"{_by(set_by.by)}{_left(set_by.until_ns, now_ns)}" if set_by is not None else " (fleet.mode)"
        yield f"mode {mode}{whose}: {what}"
    worked_on = [one for one in lives.maintenance if one.until_ns > now_ns]
    for one in worked_on[:_MOST_SAID]:
        yield f"{_maintained(one)}{_left(one.until_ns, now_ns)}: nobody is told of its jobs"
    muted = [mute for mute in lives.mutes if mute.until_ns > now_ns]
    for mute in muted[:_MOST_SAID]:
        of = f" of {mute.owner}" if mute.owner else ""
        yield f"{mute.training_job}{of} is muted{_by(mute.by)}{_left(mute.until_ns, now_ns)}"
    if more := len(worked_on[_MOST_SAID:]) + len(muted[_MOST_SAID:]):
        yield f"and {more} more silences"


def _maintained(one: Maintenance) -> str:
    return f"{one.node} is in maintenance{_by(one.by, one.why)}"


def _by(by: str, why: str = "") -> str:
    said = ": ".join(part for part in (by, why) if part)
    return f" ({said})" if said else ""


def _left(until_ns: int, now_ns: int) -> str:
    minutes = -(-(until_ns - now_ns) // (60 * SECOND_NS))
    return f" for {minutes} more min" if minutes < 600 else f" for {minutes // 60} more h"


def _with_mute(mutes: Sequence[Mute], mute: Mute, now_ns: int) -> tuple[Mute, ...]:
    """Of each user the latest stay."""
    others = [m for m in mutes if m.name != mute.name and m.until_ns > now_ns]
    too_many = [m for m in others if m.owner == mute.owner][: 1 - _MOST_MUTES_OF_USER]
    return (*[m for m in others if m not in too_many][1 - _MOST_MUTES :], mute)
