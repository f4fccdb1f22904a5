"""The life of one incident, and what the outputs are given once a tick."""

from typing import Literal, get_args

import msgspec

from stallwatch.model.finding import Finding, RankState
from stallwatch.model.snapshot import JobKey, NodeSnapshot
from stallwatch.model.verdict import Cause, Report, Verdict

# "resolved": the job moves again. "ended": it died of what was found, or was ended while it stood: nothing is well.
IncidentState = Literal["suspect", "open", "resolved", "ended"]
OVER: frozenset[IncidentState] = frozenset({"resolved", "ended"})
Severity = Literal["none", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # from least to most
Judgement = Literal["right", "wrong"]
# "shadow": all is watched and judged, and nobody is told; "off": nothing is looked at, and nobody is told.
Mode = Literal["tell", "shadow", "off"]
UNTOLD = "nobody is told"  # how an event begins that says why nobody is told
NO_RANKS = "no ranks of the job are left here: of its end a node tells that still has some, or this one a little later"
# What is told of an incident: each is one message, and is sent once.
Step = Literal["told", "updated", "escalated", "acknowledged", "resolved", "ended"]
LAST_STEPS: tuple[Step, ...] = ("resolved", "ended")  # nothing is told after one of them


def is_told(severity: Severity, minimum: Severity = "warning") -> bool:
    """Whether people are told of what is so severe, who want to hear from `minimum` on."""
    return severity != "none" and SEVERITIES.index(severity) >= SEVERITIES.index(minimum)


class IncidentEvent(msgspec.Struct, frozen=True):
    """What happened to an incident, and when (Unix epoch, ns)."""

    wall_ns: int
    what: str  # "suspected", "evidence captured", "verdict", "told as warning", "escalated", "resolved", …


class OutputTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one output has told of an incident."""

    steps: tuple[Step, ...] = ()
    verdict: str = ""  # the one that was told last: cause and culprits
    thread: str = ""  # where what follows belongs


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was told of an incident, by output; whoever speaks next edits, and never adds."""

    outputs: dict[str, OutputTold] = {}
    incident_id: str = ""  # by which people know it: it stays the same, whoever tells of it then
    waits_on: str = ""  # as Incident.waits_on
    seconds: float = 0.0  # for which the verdict that was told had been the same, when this was noted

    @property
    def severity(self) -> Severity:
        """The most urgent that people were told it is."""
        steps = {step for one in self.outputs.values() for step in one.steps}
        return "critical" if "escalated" in steps else "warning" if "told" in steps else "none"


def is_last(told: Told) -> bool:
    """Whether whoever was told of it was told of its end."""
    return all(set(LAST_STEPS) & set(one.steps) for one in told.outputs.values() if "told" in one.steps)


class Together(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the nodes of a job judge and tell as one: how this node stands in that."""

    speaks: bool = False  # this node tells people
    why: str = ""  # who else does, or why nobody does yet
    incident_id: str = ""  # the same on all nodes; "" until they have agreed
    nodes: int = 0  # that the verdict rests on; 0: it is this node's alone
    silent: tuple[str, ...] = ()  # nodes of the job from which nothing comes any more
    told: Told | None = None  # by whoever spoke before


class Incident(msgspec.Struct, frozen=True):
    """An incident as it stands: whom it is of, its state, whom was told what."""

    incident_id: str  # job, epoch and ordinal; no time in it
    job: JobKey
    node: str
    state: IncidentState
    severity: Severity  # "none": nobody has been told
    opened_wall_ns: int
    since_ns: int  # CLOCK_MONOTONIC when the oldest finding began
    findings: tuple[Finding, ...]
    report: Report | None  # None until a verdict exists
    bundle: str  # folder with the raw evidence
    verdict_since_ns: int | None = None  # CLOCK_MONOTONIC since when cause and culprits are the same
    muted: bool = False
    withheld: Severity = "none"  # what people would have been told, had a silence not kept it back
    resolved_wall_ns: int | None = None  # when it was over, by whatever way
    resolution: str = ""
    events: tuple[IncidentEvent, ...] = ()
    tell_wall_ns: int | None = None  # when somebody is told, unless it moves; None: told, or time alone does not
    tell_reason: str = ""  # why not sooner
    acknowledged_by: str = ""  # who said that he is on it; nobody is paged a second time then
    judged: Judgement | Literal[""] = ""  # whether the verdict was right, by somebody who knows
    job_over: bool = False  # no process of its job is left: seen before it is said to be over
    together: Together | None = None  # None: this node sees the whole job, or judges alone
    # What it waits for that others may wait for too, as it was when people were told: it stays the same, for by it
    # messages are put together.
    waits_on: str = ""
    # When its job was started: the youngest of its processes here; None: not known. Jobs that follow each other at one
    # address have one name.
    job_began_wall_ns: int | None = None

    @property
    def shared_id(self) -> str:
        """What people and other nodes know it by."""
        return (self.together.incident_id if self.together is not None else "") or self.incident_id

    @property
    def told_elsewhere(self) -> str:
        """Why this node tells nobody: who does, or that it is not agreed yet; "" where it is this node's to tell."""
        return "" if self.together is None or self.together.speaks else self.together.why or "not agreed yet"

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in OVER

    @property
    def verdict(self) -> Verdict | None:
        """Its primary verdict; None before there is one."""
        return self.report.verdicts[0] if self.report and self.report.verdicts else None


class Companion(msgspec.Struct, frozen=True, omit_defaults=True):
    """An incident of another job that stands at the same file system or server, on this node or another."""

    incident_id: str  # Incident.shared_id
    training_job: str
    severity: Severity = "none"
    said: str = ""  # a line about it
    acknowledged_by: str = ""
    tells: bool = False  # people were told of it by a message of its own
    named: tuple[str, ...] = ()  # incidents that need none of their own while its message stands
    over: bool = False  # a moment ago: those whom its message named are about to be well, too


class StandsAt(msgspec.Struct, frozen=True):
    """What this node says to others of an incident that stands where those of other jobs may stand, too."""

    waits_on: str
    readers: str  # the channel that is told; who reads another is told there
    incident: Companion
    wants: bool = False  # to tell people now


class Gathering(msgspec.Struct, frozen=True):
    """What nodes say together of whom stands at one file system or server, for the readers of one channel."""

    waits_on: str
    readers: str
    others: tuple[Companion, ...] = ()  # of other nodes
    known: bool = False  # that is heard of; False: since this daemon's start nothing came
    speaks: bool = False  # it is this node's turn to tell


class RankView(msgspec.Struct, frozen=True):
    """A rank as people see it now."""

    job: JobKey
    rank: int
    local_rank: int
    world_size: int
    pid: int
    state: RankState
    step: int | None
    step_seconds: float | None  # median of the recent steps
    beat_age_seconds: float | None  # since the daemon saw the step change; None: unknown
    pulse_age_seconds: float | None
    phase: str
    limit_seconds: float | None  # the learned limit in force, None: not learned yet
    limit_reason: str
    gpu_uuid: str | None = None
    # By the slow detector's looks; None where they are too few, or it has no peer on this node.
    communication_share: float | None = None  # of its recent looks, in which it stood in a collective
    ended: str = ""  # of one that is gone how it ended: "exit code 0", "signal 9 (SIGKILL)"
    slow_share: float | None = None  # what it costs its job by making its peers wait, as in Slowness.share

    @property
    def is_leaving(self) -> bool:
        """Whether it has gone, or its job is ending: it takes no part in the job any more."""
        return self.state in ("gone", "ending")

    @property
    def training_job(self) -> str:
        """The job's name."""
        return self.job.training_job

    @property
    def epoch(self) -> str:
        """Which start of the job it is."""
        return self.job.epoch

    @property
    def owner(self) -> str:
        """Whose job it is."""
        return self.job.owner


class StageErrors(msgspec.Struct, frozen=True):
    """How many errors a part of the daemon had."""

    stage: str
    name: str
    errors_total: int


class IncidentCount(msgspec.Struct, frozen=True):
    """How many incidents a job had, by cause."""

    training_job: str  # as it is labelled: NodeReport.job_labels
    owner: str
    cause: Cause
    total: int


class StalledGpuSeconds(msgspec.Struct, frozen=True):
    """GPU seconds that stood still in incidents, by cause."""

    training_job: str  # as it is labelled: NodeReport.job_labels
    owner: str
    cause: Cause
    seconds: float


class JudgedCount(msgspec.Struct, frozen=True):
    """How often people judged verdicts of a cause right or wrong."""

    cause: Cause
    judgement: Judgement
    total: int


class XidCount(msgspec.Struct, frozen=True):
    """How often a GPU reported an XID."""

    gpu: str  # its index; "" for one that NVML does not know
    gpu_uuid: str  # of such a one "pci:" and its address
    xid: int
    total: int


class Telling(msgspec.Struct, frozen=True):
    """Whether people are told of what is found, on this node."""

    mode: Mode = "tell"
    silences: tuple[str, ...] = ()  # sentences: who said so, of what, until when


class NodeReport(msgspec.Struct, frozen=True):
    """Everything an output may show, made once a tick."""

    snapshot: NodeSnapshot
    ranks: tuple[RankView, ...]
    findings: tuple[Finding, ...]
    incidents: tuple[Incident, ...]  # open ones and those resolved lately, newest first
    stage_errors: tuple[StageErrors, ...]
    daemon_cpu_seconds: float | None  # its children included; None: could not be read
    daemon_resident_bytes: int | None
    started_wall_ns: int
    # Since the daemon started:
    incident_counts: tuple[IncidentCount, ...] = ()
    xid_counts: tuple[XidCount, ...] = ()
    stalled: tuple[StalledGpuSeconds, ...] = ()
    judged: tuple[JudgedCount, ...] = ()
    # Jobs that go by another's name, and what each is called where a name must be one job's: incidents.tally.
    job_labels: tuple[tuple[JobKey, str], ...] = ()
    telling: Telling = Telling()
    strangers: int | None = None  # nodes at the meeting place that sign with another key; None: not known
    nodes: tuple[str, ...] = ()  # all others that are at the meeting place; (): they are not known, or too many
    meetings: tuple[Gathering, ...] | None = None  # None: who stands where others do is told by each node alone
