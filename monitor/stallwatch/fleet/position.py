"""What a node knows of an incident that it shares with others, and where it stands in it. Frozen."""

from typing import Final

import msgspec

from stallwatch.fleet.roster import Unheard
from stallwatch.model.incident import Told
from stallwatch.model.verdict import Report

NOT_AGREED: Final = "the job's nodes have not agreed yet which of them tells"


class Local(msgspec.Struct, frozen=True):
    """What this node knows of one incident, as it is now."""

    incident_id: str  # on this node
    job: str  # as the meeting place calls it
    world_size: int
    ranks: tuple[int, ...]  # that run here
    judged: int  # how often this node has judged; 0: not yet
    report: Report | None  # its own, of these ranks alone
    summary: bytes  # for the other nodes; b"": it could not be made
    proven: bool  # its own evidence proves a culprit, which runs here
    told: Told  # by this node's outputs
    over: bool = False
    past: int = 0  # ordinal of the job's last incident that is over, as far as this node has taken part
    began_ns: int = 0  # CLOCK_BOOTTIME when the youngest of its processes here began; 0: not known
    begun: bool = False  # the job is past its start
    suspects: bool = False  # its own verdict names ranks that run here, however sure it is
    conclusive: bool = False  # proven, and nothing that another node sees could be the cause of it
    apart: Unheard | None = None  # nodes of the job that sign with another key
    ordinal: int = 0  # that a daemon before this one had joined; 0: this one joins
    alone: str = ""  # why nothing can be shared of this job, though the meeting place answers: a sentence
    ended: bool = False  # over because all ranks here are gone: those of other nodes may stand, or be about to


class Position(msgspec.Struct, frozen=True):
    """Where this node stands in an incident."""

    ordinal: int = 0
    speaks: bool = False
    why: str = NOT_AGREED  # who does, or why nobody does yet
    report: Report | None = None  # of the job; None: there is only this node's own
    nodes: int = 0  # that it rests on
    told: Told | None = None  # by whoever spoke before
    away: str = ""  # the meeting place does not answer, or nothing of this job can be shared there: a sentence
    silent: tuple[str, ...] = ()  # nodes of the job from which nothing comes any more
    apart: Unheard | None = None  # nodes whose word the verdict lacks, since they sign with another key
    expected: int = 1  # the ordinal that it will have, where the place has not said yet
