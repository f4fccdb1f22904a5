"""The verdict and the report that carries it: field names are a contract with scripts (`analyze --json`, the API)."""

from typing import Literal

import msgspec

from stallwatch.model.causes import CAUSES, CauseTraits
from stallwatch.model.causes import Cause as Cause

SCHEMA_VERSION = 1

Where = Literal[
    "user_code", "busy_loop", "lock", "gil", "dataloader", "checkpoint", "filesystem", "store", "socket", "init",
    "compile", "gpu_sync", "collective", "teardown", "unknown",
]  # fmt: skip
# Of these a person reads no word: the line, or that there is none, says as much.
NO_PLACE: tuple[Where, ...] = ("user_code", "unknown")
Confidence = Literal["certain", "likely", "possible"]
# What may end by itself: it is told when the patience with its kind ends (configuration, [tell]).
EndsByItself = Literal[
    "sleep", "compute", "first_use", "storage", "network", "data", "compile", "import", "tracker", "child",
    "timeout", "lock", "request",
]  # fmt: skip


class Frame(msgspec.Struct, frozen=True):
    """A line of code to show."""

    file: str
    line: int
    function: str
    source: str | None = None  # the line's text, where it could be read as the rank's own user


class CulpritProcess(msgspec.Struct, frozen=True):
    """Where a culprit runs and stands."""

    rank: int
    host: str | None = None
    pid: int | None = None
    gpu_uuid: str | None = None
    where: Where | None = None
    frame: Frame | None = None
    waits_on: str = ""  # the file system or server that its system call is about: "nfs4 filer:/vol"; "": not known


class Mismatch(msgspec.Struct, frozen=True):
    """What differs between calls that should be the same."""

    kind: Literal["op", "size", "dtype", "count"]
    expected: str
    found: str


class GroupRef(msgspec.Struct, frozen=True):
    """The process group that it is about, ranks global."""

    description: str
    ranks: tuple[int, ...]


class Fact(msgspec.Struct, frozen=True):
    """A fact, and what tells it."""

    fact: str
    source: str  # "flight recorder of rank 3", "py-spy", "/proc", "heartbeat", "NVML", …


class Rejected(msgspec.Struct, frozen=True):
    """A cause that was weighed, and why it is not the one."""

    cause: Cause
    why: str


_LEAST_REST = 0.01  # of a step: the others wait for all of it where looks say so, and nothing is divided by nothing
_TELLING = 1.5  # times a step


class Slowness(msgspec.Struct, frozen=True):
    """What slow ranks cost their job: the one measure that finding, verdict, metric, page and message show."""

    cost_seconds: float  # of each step, by which the others wait for the slow rank
    low_seconds: float  # interval of the cost, about 95 %
    high_seconds: float
    step_seconds: float  # a step as it is now, the cost included; 0: unknown
    steps: int  # observations that it rests on
    seconds: float  # the time that they span
    # Nobody has seen the job without them: where all keep a rate by clocks of their own, who is late costs nothing.
    at_most: bool = False

    @property
    def share(self) -> float:
        """The cost as a part of the step that it would be without: 0.3 is a job that is 30 % slower for it."""
        rest = max(self.step_seconds - self.cost_seconds, _LEAST_REST * self.step_seconds)
        return self.cost_seconds / rest if rest > 0 else 0.0

    @property
    def waiting_share(self) -> float:
        """The part of a step as it is in which the others wait for them."""
        return min(self.cost_seconds / self.step_seconds, 1.0) if self.step_seconds else 0.0

    @property
    def says_little(self) -> bool:
        """It is a bound, and so far away that it tells nobody what the job loses: of a host that runs ahead of its
        device the others wait for nearly all of a step, which is longer by a tenth for it."""
        return self.at_most and self.share > _TELLING


def cost_of(slowness: Slowness) -> str:
    """Word it as every output shows it: "each step takes 0.28 s, 0.063 s longer than if all ranks were as fast (+29 %;
    over the last 80 steps, 22 s)"."""
    cost, step = f"{slowness.cost_seconds:.2g} s", f"{slowness.step_seconds:.3g} s"
    if not slowness.step_seconds:
        return f"the others wait {cost} in each step for it"
    span = f"over the last {slowness.steps} steps, {slowness.seconds:.0f} s"
    more = f"+{100 * slowness.share:.0f} %"
    if slowness.says_little:
        waits = f"in {cost} of which ({slowness.waiting_share:.0%}) the others wait for it"
        return f"each step takes {step}, {waits}; how long one is without that nobody has seen ({span})"
    at_most = "at most " if slowness.at_most else ""
    return f"each step takes {step}, {at_most}{cost} longer than if all ranks were as fast ({at_most}{more}; {span})"


MOST_STEPS_LEFT = 2


class WhenOver(msgspec.Struct, frozen=True):
    """What of the steps can still be done when the job is over, or moves again: no process of it is there, or none
    stands."""

    steps: tuple[str, ...] = ()  # the most telling first, at most MOST_STEPS_LEFT
    starts_job: bool = False  # one of the steps says how the job is started again


class Verdict(msgspec.Struct, frozen=True):
    """What is wrong, whose fault it is, how sure that is, and what to do."""

    cause: Cause
    culprits: tuple[int, ...]  # global ranks, sorted
    confidence: Confidence
    summary: str  # one sentence a person can act on
    culprit_processes: tuple[CulpritProcess, ...] = ()
    waiting: str = ""  # rank ranges: "0-1,3-7"
    where: Where | None = None
    mismatch: Mismatch | None = None
    process_group: GroupRef | None = None
    operation: str | None = None
    seq: int | None = None
    because: tuple[Fact, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    missing: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    slowness: Slowness | None = None
    by_design: str = ""  # why a slowness is work that the program gives these ranks; "": nothing says so
    ends_by_itself: EndsByItself | None = None  # what the culprits do is of this kind; None: it is not known to end
    # The file system or server for which all of its culprits wait, or all ranks where it has none: other jobs may stand
    # there too. By its source and type, the same on all nodes that share it.
    waits_on: str = ""
    waiting_at: str = ""  # where most of those stand that wait: "called at …/train.py:78 in learn (`loss.backward()`)"
    waiting_where: Where | None = None  # the kind of place where most of those stand that wait; None: nobody is seen to
    when_over: WhenOver = WhenOver()  # of next_steps; documents of older versions have none

    @property
    def traits(self) -> CauseTraits:
        """What follows from its cause."""
        return CAUSES[self.cause]

    def with_first_step(self, step: str) -> "Verdict":
        """The verdict with a step before the others, which holds as well when the job is over."""
        left = WhenOver((step, *self.when_over.steps)[:MOST_STEPS_LEFT], self.when_over.starts_job)
        return msgspec.structs.replace(self, next_steps=(step, *self.next_steps), when_over=left)


# gc=False: nodes hold texts and their children, no cycle; the collector, called by what a tree of 16,384 stacks
# allocates, walked all of it again and again (0.6 of 1.1 s).
class StackNode(msgspec.Struct, frozen=True, gc=False):
    """A node of the merged stacks: outermost frame first, children with the fewest ranks first."""

    function: str
    file: str
    line: int | None
    ranks: str  # rank ranges
    count: int
    children: tuple["StackNode", ...] = ()


class Report(msgspec.Struct, frozen=True):
    """`analyze --json` and one incident of the API. The first verdict is the primary one."""

    schema_version: int
    tool_version: str
    incident_id: str | None
    training_job: str | None
    epoch: str | None
    captured_at: str | None  # ISO 8601, UTC
    deadline: str | None  # when torch's own time-out ends the job, ISO 8601, UTC
    evidence_complete: bool
    verdicts: tuple[Verdict, ...]
    stacks: StackNode | None = None
    caveats: tuple[str, ...] = ()
