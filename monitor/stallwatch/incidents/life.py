"""What is remembered of each incident while it lives, and of the node between incidents. Frozen."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from stallwatch.model.finding import Finding, FindingFamily
from stallwatch.model.incident import Incident, JudgedCount, Mode
from stallwatch.model.snapshot import JobKey

# One incident per family and job: all that stops a job (a death, a stop, a stall) is one story; slowness is another.
# What only costs speed, or will break later, needs no look at ranks: a finding that lasts is the whole story.
# What samples of a moving job showed comes with its verdict: the ranks are looked at once, for the record.
Family = FindingFamily | Literal["request"]


class IncidentLife(msgspec.Struct, frozen=True):
    """An incident with what only the engine asks of it."""

    incident: Incident
    family: Family
    looks: int = 0  # begun so far
    look_ns: int = 0  # when the last look began
    early: bool = False  # what is being judged is a look that is not ready
    early_done: bool = False  # that is done once
    capturing: bool = False  # the last look is under way
    ready: bool = False  # the last look holds all that a verdict needs
    judging: bool = False
    partial: bool = False  # what is being judged is ready, but not done
    judged_look: int = 0  # the look that the present verdict rests on
    judged_look_ns: int = 0  # when that began
    look_took_ns: int = 0  # that look with its judgement
    moved_ns: int = 0  # when the last look began at which those for whom others wait made progress
    judgements_failed: int = 0
    confirmed_ns: int | None = None
    next_look_ns: int | None = None
    tells_next: bool = False  # that look is the one before somebody is told: it does not count among those at most
    repeats: int = 0  # looks that left it open, for the back-off
    waiting: tuple[int, ...] = ()  # ranks that were seen to wait; their first waits have been looked at
    waits_due: int = 0  # looks to come at who began to wait
    looks_at_waits: int = 0  # of `looks`, those at who began to wait: they come besides the others
    quiet_since_ns: int | None = None  # no finding since
    adopted_ns: int | None = None  # taken over from a daemon before this one
    began_ns: int = 0  # JobFacts.began_ns when it was opened; 0: not known


# Who is ended together, by hand or by a launcher (torchrun looks for ends ten times a second), is within this time, and
# the sensors see how. A look that began at once found them gone and could not tell: on a quiet machine one of four that
# were killed together was told as the first to end.
ENDS_TOGETHER_NS = 250_000_000


def looks_soon(life: IncidentLife, at_ns: int) -> bool:
    """Whether a look is under way, or judged, or begins soon."""
    return life.capturing or life.judging or begins_soon(life, at_ns)


def begins_soon(life: IncidentLife, at_ns: int) -> bool:
    """Whether a look begins at this moment or, as that of a death does, shortly after it."""
    return life.next_look_ns is not None and life.next_look_ns <= at_ns + ENDS_TOGETHER_NS


def died(findings: Iterable[Finding]) -> bool:
    """Whether a rank's end is among what was found: the first to go, as the exit detector tells it."""
    return any(finding.detector == "exit" for finding in findings)


class Mute(msgspec.Struct, frozen=True):
    """Nobody is told of one user's job, in all its lives."""

    training_job: str
    until_ns: int
    owner: str = ""
    by: str = ""

    @property
    def name(self) -> tuple[str, str]:
        """(owner, training_job), as JobKey.name has it: whose job is muted, in all its lives."""
        return self.owner, self.training_job


class ModeSet(msgspec.Struct, frozen=True):
    """What somebody said to hold instead of fleet.mode."""

    mode: Mode
    until_ns: int
    by: str = ""


class Maintenance(msgspec.Struct, frozen=True):
    """A node that is worked on."""

    node: str
    until_ns: int
    by: str = ""
    why: str = ""
    jobs: tuple[tuple[str, str], ...] = ()  # JobKey.name


class Cooldown(msgspec.Struct, frozen=True):
    """After a false suspicion: the same is not looked at again for a while, and longer each time."""

    job: JobKey
    family: Family
    until_ns: int
    times: int


class IncidentTable(msgspec.Struct, frozen=True):
    """The engine's whole state: incidents, open and past, and what people have asked for."""

    active: tuple[IncidentLife, ...] = ()
    past: tuple[Incident, ...] = ()  # resolved lately, newest first
    ordinals: tuple[tuple[JobKey, int], ...] = ()  # how many incidents a life of a job has had
    mutes: tuple[Mute, ...] = ()
    mode: ModeSet | None = None
    maintenance: tuple[Maintenance, ...] = ()
    cooldowns: tuple[Cooldown, ...] = ()
    judged: tuple[JudgedCount, ...] = ()  # since the daemon started
    dismissed_total: int = 0  # suspicions that came to nothing, nobody told

    def find(self, incident_id: str) -> IncidentLife | None:
        """The open incident of that id; None."""
        return next((life for life in self.active if life.incident.incident_id == incident_id), None)

    def incidents(self) -> tuple[Incident, ...]:
        """Active and lately resolved ones, newest first."""
        active = sorted((life.incident for life in self.active), key=lambda i: i.opened_wall_ns, reverse=True)
        return (*active, *self.past)


# Of each user: a job's name is his to choose, and so is how many he has. Who has more in all is forgotten by age.
_MOST_NUMBERED = 1_024
_MOST_NUMBERED_IN_ALL = 16_384


def numbered(ordinals: Iterable[tuple[JobKey, int]], job: JobKey) -> dict[JobKey, int]:
    """Given how many incidents each life of a job has had, the latest last, return it with one more of `job`."""
    after = dict(ordinals)
    after[job] = after.pop(job, 0) + 1
    own = [one for one in after if one.owner == job.owner] if len(after) > _MOST_NUMBERED else []
    for forgotten in (*own[: max(0, len(own) - _MOST_NUMBERED)], *list(after)[: len(after) - _MOST_NUMBERED_IN_ALL]):
        after.pop(forgotten, None)
    return after
