"""What the steps of a verdict refer to: its first culprit with host, pid and activity, and the line where it stands."""

from collections.abc import Mapping
from typing import NamedTuple

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.report.text import format_location
from stallwatch.model.verdict import CulpritProcess, Frame, Verdict

UNKNOWN_PID = "<pid>"


class StepPlace(NamedTuple):
    """A line at which a culprit stands. The steps are shown beneath the verdict's sentence: what that has said they do
    not say again."""

    line: str
    said: str  # the sentence
    of_one: bool  # the step with its pid says that the same holds for others: then it says whose line it is, too

    def clause(self, lead: str, *, with_pid: bool = True) -> str:
        """`lead`, "; it waits at", and the line; "" where the sentence says that. `with_pid`: for the step that names
        the culprit's pid."""
        return "" if self.line in self.said and not (self.of_one and with_pid) else f"{lead} {self.line}"


class StepContext(NamedTuple):
    """The first culprit, whose host and pid the commands carry; the steps for the others are the same."""

    verdict: Verdict
    rank: int | None
    host: str
    pid: str
    activity: RankActivity | None
    process: CulpritProcess

    @property
    def name(self) -> str:
        """The first culprit as a step names it."""
        return f"rank {self.rank}" if self.rank is not None else "the culprit"

    @property
    def name_first(self) -> str:
        """The same at the beginning of a sentence."""
        return self.name[:1].upper() + self.name[1:]

    def place(self, frame: Frame | None) -> StepPlace:
        """A line of it, as steps tell it."""
        of_one = len(self.verdict.culprits) > 1 and self.pid != UNKNOWN_PID
        return StepPlace(format_location(frame) or "a line that was not read", self.verdict.summary, of_one)

    @property
    def differs(self) -> str:
        """ ": rank 2 has this, the others that"; "" where the sentence says it, or nothing is known of it."""
        mismatch = self.verdict.mismatch
        if mismatch is None or says_what_differs(self.verdict):
            return ""
        return f": {self.name} has {mismatch.found}, the others {mismatch.expected}"

    @property
    def gpu(self) -> str:
        """ " -i GPU-1a2b" for nvidia-smi, or "" where the rank's GPU is not known: all are shown then."""
        return f" -i {self.process.gpu_uuid}" if self.process.gpu_uuid else ""


def says_what_differs(verdict: Verdict) -> bool:
    """Whether the sentence names both sides of a mismatch."""
    differs = verdict.mismatch
    return differs is not None and differs.expected in verdict.summary and differs.found in verdict.summary


def step_context(verdict: Verdict, activities: Mapping[int, RankActivity]) -> StepContext:
    """Given a verdict and what ranks do, return what its steps refer to."""
    rank = verdict.culprits[0] if verdict.culprits else None
    known = {process.rank: process for process in verdict.culprit_processes}
    process = known.get(rank, CulpritProcess(rank)) if rank is not None else CulpritProcess(-1)
    activity = activities.get(rank) if rank is not None else None
    host = process.host or (activity.host if activity else None)
    pid = process.pid if process.pid is not None else (activity.pid if activity else None)
    return StepContext(
        verdict,
        rank,
        host or (f"the node of rank {rank}" if rank is not None else "its node"),
        str(pid) if pid is not None else UNKNOWN_PID,
        activity,
        process,
    )


class Stuck(NamedTuple):
    """A rank that stands somewhere, and the line where."""

    who: StepContext
    place: StepPlace

    @property
    def host(self) -> str:
        """As commands name it."""
        return self.who.host

    @property
    def pid(self) -> str:
        """As commands name it."""
        return self.who.pid

    @property
    def name(self) -> str:
        """As a step names it: "rank 3"."""
        return self.who.name

    @property
    def activity(self) -> RankActivity | None:
        """What it does; None where nothing of it was looked at."""
        return self.who.activity

    @property
    def line(self) -> str:
        """Where it stands, or that nobody read it."""
        return self.place.line

    @property
    def stacks(self) -> str:
        """How a person sees all its threads; the first step begins with it."""
        return f"On {self.host} see all its threads: `py-spy dump --pid {self.pid}`"
