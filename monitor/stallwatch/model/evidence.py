"""Raw evidence of one incident after parsing, before thinking: what each tool said, normalised, nothing concluded."""

from collections.abc import Collection
from typing import Literal

import msgspec

from stallwatch.model.gpu import Gpu
from stallwatch.model.hook_report import CodeFrame as CodeFrame
from stallwatch.model.hook_report import HookReport
from stallwatch.model.kernel import KernelEvent
from stallwatch.model.log_event import LogEvent, LogTail
from stallwatch.model.process import ChildProcess as ChildProcess
from stallwatch.model.process import Process
from stallwatch.model.rendezvous import NO_MEETING, Rendezvous
from stallwatch.model.snapshot import Heartbeat, is_pending
from stallwatch.model.summary import RankSummary
from stallwatch.model.verdict import Slowness


class Operation(msgspec.Struct, frozen=True):
    """One entry of a flight recorder. Times are wall nanoseconds of the writing host; None is "not recorded"."""

    record_id: int
    pg_id: int  # local to the rank
    group_name: str  # local to the rank for split groups
    group_description: str
    collective_seq_id: int
    p2p_seq_id: int
    op_id: int
    name: str  # without the back end: "all_reduce", "send 0->1", "coalesced"
    backend: str  # "nccl", "gloo", …
    state: str  # "scheduled", "started", "completed"
    retired: bool
    is_p2p: bool
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    created_ns: int | None
    started_ns: int | None
    completed_ns: int | None
    timeout_ms: int | None
    duration_ms: float | None = None
    frames: tuple[CodeFrame, ...] = ()
    thread_id: str | None = None
    thread_name: str | None = None


class RecordedGroup(msgspec.Struct, frozen=True):
    """A process group as a recorder knows it."""

    name: str
    description: str
    ranks: tuple[int, ...]  # global ranks; empty: the dump does not say (gloo's default group)


class GroupStatus(msgspec.Struct, frozen=True):
    """pg_status of one group: mixes P2P in, so it says changed or unchanged. -1 is "never"."""

    pg_id: int
    enqueued: int
    started: int
    completed: int

    @property
    def pending(self) -> bool:
        """Whether it names an operation as enqueued and not completed; where none of the group has ever completed it
        may be that nobody counts them (gloo)."""
        return self.completed >= 0 and is_pending(self.enqueued, self.completed)


class Recorder(msgspec.Struct, frozen=True):
    """One dump of a flight recorder."""

    source: str  # file name inside the bundle
    look: int  # 1, 2, …
    backend: str  # "nccl", "gloo" or "" when nothing tells
    version: str
    groups: tuple[RecordedGroup, ...]
    status: tuple[GroupStatus, ...]
    operations: tuple[Operation, ...]  # oldest first
    comm_lib_version: str = ""
    cut_short: bool = False  # the file broke off, or bad entries were dropped: the newest may be missing


class ThreadStack(msgspec.Struct, frozen=True):
    """A thread's stack as py-spy wrote it."""

    name: str
    os_thread_id: int | None
    active: bool
    owns_gil: bool
    frames: tuple[CodeFrame, ...]  # innermost first
    pid: int | None = None
    ident: int | None = None  # Python's own id (py-spy's thread_id); the recorder's thread_id is the same number


class Stacks(msgspec.Struct, frozen=True):
    """One py-spy look at one process (`pid` differs from the rank's own for a worker it waits for)."""

    source: str
    look: int
    pid: int | None
    threads: tuple[ThreadStack, ...]
    error: str | None = None  # py-spy's message, when there is no stack


class PastedReport(msgspec.Struct, frozen=True):
    """A text with stacks of several ranks, and what stands around these."""

    stacks: tuple[tuple[int, Stacks], ...]  # with the rank that the text names
    log: LogTail


class SampledStack(msgspec.Struct, frozen=True):
    """A stack of a profile, and how often it was seen."""

    thread: str  # its name, "" where the profile has none
    os_thread_id: int | None
    frames: tuple[CodeFrame, ...]  # innermost first
    count: int


class Profile(msgspec.Struct, frozen=True):
    """Stacks of one process over some seconds, idle threads too. `pid` is of a child of the rank, None of itself."""

    source: str
    look: int
    stacks: tuple[SampledStack, ...]
    pid: int | None = None


class Neighbour(msgspec.Struct, frozen=True):
    """A process that ran last on a CPU which a rank's main thread may use, or what one rank has started of one name, or
    threads of its own."""

    pid: int  # of the busiest; the thread's id of a thread
    command: str
    cpu_share: float  # of one CPU, over the time of the profile; of all of them together
    many: int = 1
    # A rank itself; what a rank has started (a loader's worker); threads beside the main thread of this rank's process.
    kin: Literal["rank", "child", "thread"] | None = None
    rank: int | None = None  # which that is
    training_job: str = ""  # of which job; "": of this one

    def is_of(self, ranks: Collection[int]) -> bool:
        """Whether one of these ranks of this job has started it, or it is a thread of one."""
        return self.kin in ("child", "thread") and not self.training_job and self.rank in ranks


class Usage(msgspec.Struct, frozen=True):
    """What a rank used while its profile was taken. Shares are of that time; None: the system does not tell."""

    look: int
    seconds: float
    cpu_share: float | None = None  # its main thread ran
    runnable_share: float | None = None  # its main thread could run and had no CPU
    major_faults: int | None = None
    read_bytes: int | None = None  # from storage, by all its threads
    write_bytes: int | None = None
    swapped_bytes: int | None = None  # at the end
    cpus: tuple[int, ...] | None = None  # that its main thread may use
    beside: tuple[Neighbour, ...] = ()  # the busiest first
    stopped_share: float | None = None  # it stood stopped by a signal, without a tracer
    frozen_share: float | None = None  # its control group stood frozen
    # Of the periods of its control group's quota of the CPU, those in which that was used up; None: it has none.
    throttled_share: float | None = None


class ThreadState(msgspec.Struct, frozen=True):
    """A thread as /proc shows it. CPU in clock ticks."""

    tid: int
    name: str
    state: str
    cpu_ticks: int | None = None
    wchan: str | None = None
    namespace_tid: int | None = None  # in its process' own PID namespace; None: it lives in ours
    wakes: int | None = None  # how often it has gone to sleep of its own will, so far: a wait that ends, ends in one
    own_wakes: int = 0  # of those that follow, which are our doing: a pause for a stack ends a wait as well
    waits_on: str = ""  # file system or server that its system call is about: "nfs4 filer:/vol"; "": none, or not known
    moved_bytes: int | None = None  # read and written by its own system calls, so far
    awaited_child: int | None = None  # for which its system call waits, by its own PID namespace; None: any, or untold
    endless: bool | None = None  # it waits at a futex, and the call has no time-out; None: at none, or not known


class ProcessLook(Process, frozen=True, kw_only=True):
    """A rank's process at one look of an incident, thread by thread, or how it ended."""

    source: str
    look: int
    exit_code: int | None = None
    exit_signal: int | None = None
    threads: tuple[ThreadState, ...] = ()
    # Not in read_bytes and write_bytes, so that those are the rank's own work: what dumps that we asked for, and our
    # hook, took at this and earlier looks.
    own_read_bytes: int = 0
    own_write_bytes: int = 0
    exit_source: str | None = None
    out_of_memory: bool | None = None
    at_ns: int | None = None  # CLOCK_MONOTONIC
    ended_ns: int | None = None  # CLOCK_MONOTONIC when the end was seen: orders deaths
    namespace_pid: int | None = None  # in its own PID namespace: what its logs and NCCL call it
    shared_memory_bytes: tuple[int, int] | None = None  # its own /dev/shm: used, size
    memory_bytes: tuple[int, int | None] | None = None  # of its cgroup: used, limit (None: no limit)
    out_of_memory_kills: int | None = None  # in its cgroup, so far
    lock_holder_pid: int | None = None  # holds the lock on a file that it waits for; None: waits for none, or not known


# Begins `detail` of an Attempt whose hook answered that there is no recorder: torch.distributed is not initialised.
ANSWERED_WITHOUT_DUMP = "answered without a dump"
# Begins `detail` of an Attempt whose hook had an answer and could not create its file: nothing is said of its torch.
REFUSED = "asked, and its hook could not create the file of its answer"
# In the detail of a "log" attempt: several ranks write to this file, so a line without a rank's mark is anybody's.
SHARED_LOG = "the same file as other ranks'"


class Attempt(msgspec.Struct, frozen=True):
    """One thing asked of a rank, and what answered. A dump that is missing says something only if it was asked for."""

    what: str  # "flight_recorder", "stacks", "process", …
    look: int
    asked_at_ns: int | None
    answered: bool
    detail: str = ""


class SourceBlock(msgspec.Struct, frozen=True):
    """A block that a line stands in, within its function."""

    kind: str  # for, while, if, elif, else, except, finally
    line: int  # of its header
    text: str  # its header


class SourceLine(msgspec.Struct, frozen=True):
    """The text of a line that a stack names, and the blocks around it."""

    file: str
    line: int
    text: str
    blocks: tuple[SourceBlock, ...] | None = None  # outermost first; None: not looked for
    given: tuple[str, ...] = ()  # lines before it that gave what it waits for, nearest first
    round_calls: str = ""  # a call to other ranks in every round of its innermost loop, or of its function without one


class RankEvidence(msgspec.Struct, frozen=True):
    """All that is known of one rank, look by look."""

    rank: int
    host: str | None
    pid: int | None
    recorders: tuple[Recorder, ...] = ()
    stacks: tuple[Stacks, ...] = ()
    processes: tuple[ProcessLook, ...] = ()
    heartbeat: tuple[Heartbeat, ...] = ()  # one per look, oldest first
    attempts: tuple[Attempt, ...] = ()
    log: tuple[str, ...] = ()  # tail of its log, one line each
    captured_at_ns: int | None = None  # wall
    last_step: int | None = None
    sources: tuple[SourceLine, ...] = ()
    log_events: tuple[LogEvent, ...] = ()
    # Made of whole rings by the reader of a large incident; `recorders` then hold the newest entries only.
    summary: RankSummary | None = None
    scenes: tuple[HookReport, ...] = ()  # oldest first
    profiles: tuple[Profile, ...] = ()  # of itself and of its children, oldest first
    usages: tuple[Usage, ...] = ()  # oldest first


class RasRank(msgspec.Struct, frozen=True):
    """A communicator's member by NCCL RAS; counts are launches, so equal counts prove nothing about health."""

    rank: int  # within the communicator
    host: str
    pid: int
    counts: tuple[tuple[str, int], ...]
    missing: bool = False
    dead: bool = False
    abort: bool = False


class RasCommunicator(msgspec.Struct, frozen=True):
    """A communicator as NCCL RAS reports it."""

    hash: str
    size: int
    ranks: tuple[RasRank, ...]


class NodeEvidence(msgspec.Struct, frozen=True):
    """All that is known of one node."""

    host: str
    ranks: tuple[int, ...]
    gpus: tuple[tuple[Gpu, ...], ...] = ()  # samples, oldest first
    ras: tuple[RasCommunicator, ...] = ()
    kernel_log: tuple[str, ...] | None = None  # None: not read, which is not "nothing there"
    kernel_events: tuple[KernelEvent, ...] = ()


class HeldBack(msgspec.Struct, frozen=True):
    """Ranks for which all others of the moving job wait, by what detection measured over many steps."""

    ranks: tuple[int, ...]
    reason: str  # a clause
    slowness: Slowness | None
    sure: bool  # it was confirmed; else a reason to look
    from_start: bool = False  # since the job's first steps
    grows: bool = False  # it costs more and more


class Evidence(msgspec.Struct, frozen=True):
    """All that is known of an incident: what a verdict is made of."""

    world_size: int | None
    backend: str | None
    ranks: tuple[RankEvidence, ...]  # sorted by rank; only ranks of which something could be read
    nodes: tuple[NodeEvidence, ...]
    caveats: tuple[str, ...]  # one sentence per unreadable or contradictory file
    incident_id: str | None = None
    training_job: str | None = None
    epoch: str | None = None
    looks: int = 1
    log_events: tuple[LogEvent, ...] = ()  # of the launcher, and of ranks of which nothing else is known
    log_nodes: int = 1  # of how many nodes the logs tell: of more than one, a local rank is no rank
    meeting: Rendezvous = NO_MEETING
    held_back: HeldBack | None = None
    went_on: tuple[int, ...] = ()  # ranks without a hook that began to stand long after others had left in order
