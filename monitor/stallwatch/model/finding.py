"""A symptom, with its subject and since when; what it means is the diagnosis' business."""

from typing import Literal

import msgspec

from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Slowness, Verdict

# What a symptom is about, and the one place that says so. "hang": the job, or a rank of it, stands still or has gone.
# Of the others the job moves: "slow": a rank holds it back; "health": what only costs speed or will break later;
# "drift": its calls have parted.
FindingFamily = Literal["hang", "slow", "health", "drift"]
Stage = Literal["suspect", "confirmed"]
RankState = Literal["starting", "stepping", "phase", "waiting", "suspect", "stopped", "ending", "gone", "unknown"]


class Finding(msgspec.Struct, frozen=True):
    """What a detector suspects, of which job and ranks, and why."""

    detector: str  # "stall", "exit", "stopped", "slow"
    stage: Stage
    job: JobKey
    ranks: tuple[int, ...]  # ranks on this node that show the symptom, sorted
    since_ns: int  # CLOCK_MONOTONIC
    limit_seconds: float  # the limit that was passed; 0 where none applies
    reason: str  # "rank 3 has made no step for 8.2 s; its limit is 5.0 s (20 × the median step of 0.05 s)"
    resolvable: bool = True  # False: cannot resolve itself (exit, stop): told at once
    step: int | None = None  # that its ranks stand at, where steps are counted: what recurs is told by it
    slowness: Slowness | None = None  # what it costs the job, where it only slows it
    due_ns: int = 0  # CLOCK_MONOTONIC when this suspicion is confirmed if it lasts; 0: time alone does not
    verdict: Verdict | None = None  # where the symptom was judged with the evidence that showed it
    from_start: bool = False  # of a slow rank: it has been so since the job's first steps
    grows: bool = False  # of a slow rank: it costs more and more since it was found
    lately: bool = False  # of a slow rank: the last seconds show it, too
    without_cost: str = ""  # of a slow rank: the reason without what it costs, beside another measure of that
    may_pass: bool = False  # a suspicion of what has passed by itself before: it opens no incident until it is due
    went_on: tuple[int, ...] = ()  # of an end in order: ranks that began to stand long after it (detectors.exit)
    about: FindingFamily | None = None  # as its detector has it; None: as the table below has its detector

    @property
    def family(self) -> FindingFamily:
        """What it is about: a hang, or another kind."""
        return self.about or _FAMILIES.get(self.detector, "hang")


_FAMILIES: dict[str, FindingFamily] = {"slow": "slow", "slow_job": "health", "health": "health", "drift": "drift"}
