"""What one node looked like at one moment: the only input of the detectors, and a line of timeline.jsonl."""

import msgspec

from stallwatch.model.gpu import Gpu
from stallwatch.model.gpu_metrics import GPU_METRICS
from stallwatch.model.kernel import KernelEvent
from stallwatch.model.process import Process
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.sensor_spec import SensorSpec, Source
from stallwatch.model.verdict import Verdict

SCHEMA_VERSION = 1
MOST_OPEN_GROUPS = 8  # of one rank: a job with hundreds of groups waits in a few of them at a time


class JobKey(msgspec.Struct, frozen=True, order=True):
    """One life of one user's training job. A restart is another epoch of the same `training_job`.

    Names are free to everybody on a shared node: what two users call alike is two jobs.
    """

    training_job: str  # by precedence: STALLWATCH_JOB, Slurm, Kubernetes, torchrun run id, master address and port
    epoch: str  # world key: master address, port, size, restart count, run id
    owner: str = ""  # the user whose processes its ranks are, by the node's name for the uid; "": not known

    @property
    def name(self) -> tuple[str, str]:
        """What its lives have in common: (owner, training_job). People speak of jobs by it."""
        return self.owner, self.training_job


def is_pending(enqueued: int, completed: int) -> bool:
    """Given a recorder's counters, of a group or of all together, return whether an operation is enqueued and not
    completed: its rank waits in it, or its device has it still to do."""
    return enqueued > completed


class GroupCounter(msgspec.Struct, frozen=True):
    """Numbers a rank's recorder keeps per process group. They tell changed from unchanged, nothing more:
    P2P and object collectives are mixed in, and `pg_id` is local to the process."""

    recorder: str  # "nccl" or "gloo"
    pg_id: int
    enqueued: int
    completed: int

    @property
    def pending(self) -> bool:
        """Whether the group has operations that are enqueued and not completed."""
        return is_pending(self.enqueued, self.completed)


class CounterLook(msgspec.Struct, frozen=True, array_like=True):
    """What a rank had enqueued and completed at a moment that all ranks of a node have in common (by its number)."""

    number: int
    at_ns: int
    step: int  # -1: nobody counts steps
    nccl_enqueued: int  # over all groups of that recorder
    nccl_completed: int
    gloo_enqueued: int
    gloo_completed: int


class Heartbeat(msgspec.Struct, frozen=True):
    """A hook's record, decoded. Times are CLOCK_MONOTONIC nanoseconds of the node."""

    path: str
    uid: int  # owner of the file
    pid: int  # in the writer's own PID namespace
    start_ticks: int
    pid_namespace: int
    rank: int
    local_rank: int
    world_size: int
    node: str
    training_job: str
    epoch: str
    restart_count: int
    is_child: bool  # a process spawned by a live process of the same rank: not a rank
    notify: bool  # False: STALLWATCH_NOTIFY=off
    step: int | None  # None: nobody counts steps
    last_step_ns: int | None
    step_durations_ns: tuple[int, ...]  # newest last
    phase: str  # "" outside every phase
    phase_since_ns: int
    pulse_count: int  # the hook's own thread: stops with the GIL, goes on when only the main thread is stuck
    pulse_ns: int
    dump_started_ns: int | None  # a dump holds the GIL for up to seconds: a still pulse is then no sign
    answered_request: int  # number of the last dump request that was answered
    ended: bool
    exit_code: int | None
    ended_ns: int | None
    groups: tuple[GroupCounter, ...]
    groups_dropped: int = 0  # groups for which the record had no room
    attached_ns: int = -1
    exception: str = ""  # type of the uncaught exception that is ending the process; it may hang in its teardown
    errors: int = 0  # what the hook swallowed
    refused_errno: int = 0  # why the answer to the last request could not be left; 0: it could
    looks: tuple[CounterLook, ...] = ()  # of the last seconds, several a second, oldest first
    # (recorder, pg_id, description and members' hash: the same on every rank) of groups in which operations are pending
    pending_groups: tuple[tuple[str, int, str], ...] = ()
    # The thread that steps; where nobody counts steps, the main thread. None: a hook that did not say.
    training_ident: int | None = None  # Python's: recorders and stacks carry the same number
    training_tid: int | None = None  # the kernel's, in the writer's own PID namespace
    frame_changes: int | None = None  # how often its Python frames were seen changed
    differs: tuple[tuple[str, str], ...] = ()  # (name, value here) of versions and variables unlike its peers' here
    untested: tuple[tuple[str, str], ...] = ()  # (library, version) newer than any whose recorder was read under test

    @property
    def open_groups(self) -> tuple[GroupCounter, ...]:
        """The first groups in which operations are pending: those that are named and shown."""
        return tuple(group for group in self.groups if group.pending)[:MOST_OPEN_GROUPS]


class ThreadSample(msgspec.Struct, frozen=True, array_like=True):
    """What a thread has done so far."""

    tid: int
    run_ns: int  # on a processor
    communicates: bool = False  # by its name: torch starts it with a process group of gloo
    wakes: int | None = None  # how often it has gone to sleep of its own will; None: not asked, for it rests


class ProcessSample(Process, frozen=True, kw_only=True):
    """A rank's process at one tick."""

    pid: int
    state: str
    tracer_pid: int
    command: str
    main_thread_state: str  # of the thread that trains, where its hook names another than the main thread
    main_thread_cpu_ticks: int  # of the same
    cpu_ticks: int
    resident_bytes: int
    has_terminal: bool  # runs in somebody's terminal session
    reaped_ticks: int = 0  # of CPU, of the programs that it has run to their end, and of theirs
    main_thread_wakes: int | None = None  # how often the main thread has gone to sleep of its own will; None: not known
    main_thread_moved_bytes: int | None = None  # by system calls of its own; None: not known, or not asked
    # Of a rank without a hook: those that have done most, the main one first; empty: not asked, or not told.
    busiest_threads: tuple[ThreadSample, ...] = ()


class Outputs(msgspec.Struct, frozen=True):
    """Where a process' output went and who it was, noted while it lived: its last words are there."""

    paths: tuple[str, ...]  # standard output and error, where they are files; as formats.outside_text.path_of has them
    uid: int
    gid: int
    groups: tuple[int, ...]
    mount_namespace: str = ""  # as /proc/<pid>/ns/mnt names it: in a container the same path is another file


class ProcessEnd(msgspec.Struct, frozen=True):
    """A rank's process is gone. `exit_code` and `exit_signal` are both None when nobody could tell."""

    at_ns: int
    exit_code: int | None
    exit_signal: int | None
    source: str  # "hook", "zombie", "torchrun log", "cgroup", "unknown"
    out_of_memory: bool | None = None


class DiskSample(msgspec.Struct, frozen=True):
    """A file system that a rank writes to, by its working directory or by files that it has had open for writing."""

    path: str  # the folder of the largest such file (formats.outside_text.path_of)
    free_bytes: int  # for ordinary users
    size_bytes: int
    largest_file_bytes: int  # that was seen being written there
    at_ns: int


class RankSample(msgspec.Struct, frozen=True):
    """One rank's process on this node."""

    job: JobKey
    rank: int
    local_rank: int
    world_size: int
    pid: int  # in the daemon's PID namespace
    start_ticks: int
    heartbeat: Known[Heartbeat] | Unavailable
    process: Known[ProcessSample] | Unavailable
    end: ProcessEnd | None = None
    outputs: Outputs | None = None  # None: not known, or no files
    disks: tuple[DiskSample, ...] = ()  # those that are known


class NetworkPort(msgspec.Struct, frozen=True):
    """A port of a network device by sysfs; counters are since the device came up."""

    device: str  # "mlx5_0", "eth0"
    port: int  # 1 for Ethernet
    kind: str  # "infiniband", "ethernet" (link layer)
    state: str  # "active", "down", "init", "armed"; Ethernet: "up", "down", "unknown"
    counters: tuple[tuple[str, int], ...]  # only those that are there


class HostSample(msgspec.Struct, frozen=True):
    """What the kernel says of the node itself; a source that is absent or closed is in `missing`, with the reason."""

    notices: tuple[KernelEvent, ...]  # of the last minutes, oldest first
    shared_memory_bytes: tuple[int, int] | None  # /dev/shm: used, size
    open_files: tuple[int, int] | None  # of the whole node: open, limit
    memory_available_bytes: int | None
    ports: tuple[NetworkPort, ...] | None  # None: not read yet
    missing: tuple[tuple[str, str], ...] = ()  # (source, why and what it needs)

    @property
    def problem(self) -> str:
        """Every source that it cannot see with the reason, in one line; "" where it sees all."""
        return "; ".join(f"{source}: {why}" for source, why in self.missing)


class PartStatus(msgspec.Struct, frozen=True):
    """How one part of a read went, where a sensor reads several."""

    up: bool
    reason: str  # "" when up
    duration_seconds: float
    errors_total: int
    required: bool = True  # False: absent is normal


class RanksLook(msgspec.Struct, frozen=True):
    """The ranks of the node at one tick."""

    ranks: tuple[RankSample, ...]
    heartbeats: PartStatus
    processes: PartStatus

    @property
    def parts(self) -> tuple[PartStatus, ...]:
        """How the sources that it joins answered."""
        return self.heartbeats, self.processes


class GpusLook(msgspec.Struct, frozen=True):
    """The GPUs of the node at one tick."""

    gpus: tuple[Gpu, ...]
    values: PartStatus
    events: PartStatus

    @property
    def parts(self) -> tuple[PartStatus, ...]:
        """How the sources that it joins answered."""
        return self.values, self.events


class SensorStatus(msgspec.Struct, frozen=True):
    """How a sensor did at this tick: the monitor monitors itself."""

    sensor: str
    up: bool
    reason: str  # "" when up; "no GPU on this node" is normal and said
    duration_seconds: float
    errors_total: int
    required: bool = True  # False: absent is normal (a node without GPUs)


class JobDrift(msgspec.Struct, frozen=True):
    """What the last periodic sample of a job that moves said of its calls."""

    job: JobKey
    at_ns: int  # CLOCK_MONOTONIC of the sample
    ranks: int  # whose recorders answered
    verdicts: tuple[Verdict, ...] = ()  # one per group whose members have parted; () is "nothing seen", not healthy
    problem: str = ""  # why the sample says nothing


class NodeSnapshot(msgspec.Struct, frozen=True):
    """All that every sensor read at one tick. Detection sees nothing else."""

    tick: int
    at_ns: int  # CLOCK_MONOTONIC
    wall_ns: int
    node: str
    late_seconds: float  # how late our own tick was: a late window proves nothing about others
    ranks: tuple[RankSample, ...]
    gpus: Known[tuple[Gpu, ...]] | Unavailable
    sensors: tuple[SensorStatus, ...]
    schema_version: int = SCHEMA_VERSION
    # None: nobody looked, as in timelines of older versions.
    host: Known[HostSample] | Unavailable | None = None
    drifts: tuple[JobDrift, ...] = ()  # the last sample of each job that was sampled


SENSORS: tuple[SensorSpec, ...] = (
    SensorSpec(
        "ranks",
        "the reader of ranks",
        RanksLook,
        "stallwatch.sensors.ranks:make",
        (
            Source(
                "heartbeats",
                "The hook's records",
                "step, phase, pulse, collectives enqueued and completed per group",
                "`stallwatch.attach()`, `python -m stallwatch.run` or `stallwatch auto enable` in the job; "
                "`STALLWATCH_DIR` shared with a container",
                "the rank is found by its environment; process, stacks and GPU are seen, steps are not; a job is "
                "looked at when no rank of it has worked for a minute, or on request",
            ),
            Source(
                "processes",
                "/proc of ranks",
                "state, CPU, I/O, children, exit, out-of-memory kill",
                "nothing for own processes; I/O and exit codes of others' need CAP_SYS_PTRACE; exit codes of reaped "
                "processes Linux 6.15",
                "exit code unknown unless hook, torchrun's error file or the cgroup tells; I/O unknown",
            ),
        ),
        privileged=True,
        required=True,
    ),
    SensorSpec(
        "gpus",
        "NVML",
        GpusLook,
        "stallwatch.sensors.gpus:make",
        (
            Source(
                "gpus",
                "NVML values",
                "utilisation, power, clocks, throttle time, ECC, PCIe, NVLink, remapped rows, recovery action, "
                "processes",
                "NVIDIA driver, `/dev/nvidia*`",
                "no GPU verdicts; a driver that does not answer is said by /readyz, metrics and log, and costs "
                "one child",
            ),
            Source(
                "gpu_events",
                "NVML event set",
                "XIDs and double-bit ECC within milliseconds, in containers too",
                "NVIDIA driver; events for the calling user (root on some drivers)",
                "XIDs come from the kernel log alone",
            ),
        ),
        # Half of what an idle node pays, measured on an H200: 0.3 % of a core at a look a second.
        idle_seconds=5.0,
        switch="Read GPUs through NVML where there are any.",
        metrics=GPU_METRICS,
    ),
    SensorSpec(
        "host",
        "the reader of the node",
        HostSample,
        "stallwatch.sensors.host:make",
        (
            Source(
                "host",
                "Kernel log",
                "XID, GPU off the bus, out-of-memory kills, hung tasks",
                "`/dev/kmsg` with CAP_SYSLOG, else the journal (group systemd-journal)",
                "XIDs come through NVML; OOM kills through the cgroup's count",
            ),
        ),
        privileged=True,
        switch="Read the node: kernel log, shared memory, open files, network ports.",
    ),
)
