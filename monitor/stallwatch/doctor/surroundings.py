"""The outside world as checks see it: one typed object, so that a test hands in a fake root and fake answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from stallwatch.model.evidence import Evidence
from stallwatch.model.gpu import GpuState
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.verdict import Report


class NamedEnvironment(msgspec.Struct, frozen=True):
    """Variables and where they were read: checks name the place, so that a person knows which file to edit."""

    place: str  # "this shell", "rank 3 (pid 812)", "/etc/nccl.conf"
    values: Mapping[str, str]
    rank: int | None = None
    pid: int | None = None
    is_file: bool = False  # nccl.conf: only what NCCL reads may stand there


class RankFacts(msgspec.Struct, frozen=True):
    """A rank that runs on this node: by its hook's facts file, or by its environment."""

    rank: int
    pid: int
    local_rank: int | None
    world_size: int | None
    environment: Mapping[str, str]
    versions: Mapping[str, str]  # empty where no hook wrote facts
    argv: tuple[str, ...]
    working_directory: str
    executable: str
    alive: bool
    uid: int | None = None  # owner of the process: nothing of another user's is run or read as ourselves
    network: str = ""  # its network namespace: two containers may both call their master localhost:29500

    @property
    def job(self) -> tuple[str, ...]:
        """What ranks of one job have in common, and those of two jobs have not."""
        names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
        return (*(self.environment.get(name, "") for name in names), str(self.uid), self.network)


class Interface(msgspec.Struct, frozen=True):
    """A network interface of this node and its addresses, IPv4 and IPv6."""

    name: str
    is_up: bool
    addresses: tuple[str, ...]


class Space(msgspec.Struct, frozen=True):
    """Room on a file system, and whether the path on it can be written to by us."""

    total_bytes: int
    free_bytes: int  # for an ordinary user
    writable: bool


class Lookup(msgspec.Struct, frozen=True):
    """Addresses of a name, in the order in which the resolver gives them; or why there are none."""

    addresses: tuple[str, ...]
    error: str = ""


class Reach(msgspec.Struct, frozen=True):
    """How one attempt to connect ended."""

    outcome: Literal["open", "refused", "no_route", "silent", "error"]
    error: str = ""
    source: str = ""  # the own address that the route chooses; "" where there is none
    seconds: float = 0.0  # the limit, where nothing answered


class CommandResult(msgspec.Struct, frozen=True):
    """How a command ended and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str


class TrainingInterpreter(msgspec.Struct, frozen=True):
    """The training interpreter, asked in a child."""

    executable: str
    python: str
    versions: Mapping[str, str]  # distribution: version
    cuda: str = ""  # torch.version.cuda; "" a build without CUDA, or no torch, or `build_unread`
    hip: str = ""
    nccl: str = ""  # as torch was linked or loads it: "2.28.9"
    conflicts: tuple[str, ...] = ()  # "deepspeed 0.12 requires pydantic<2, found 2.9"
    not_compared: str = ""  # why nobody knows of conflicts; "": `conflicts` are all
    build_unread: str = ""  # why nobody knows what torch was built with; "": it was read, or there is no torch


class Resolver(Protocol):
    """Host names as a training process would look them up; live: doctor.live.network.DnsResolver."""

    def lookup(self, name: str) -> Known[Lookup] | Unavailable:
        """Ask as a training process would (getaddrinfo). Unavailable: no answer by the deadline."""
        ...


class Sockets(Protocol):
    """Interfaces, ports and reachability of this node; live: doctor.live.network.NodeSockets."""

    def interfaces(self) -> tuple[Interface, ...]:
        """All network interfaces."""

    def can_listen(self, port: int) -> str:
        """Bind and listen as torch's store does (SO_REUSEADDR); return the error, "" when it works."""
        ...

    def free_port(self) -> int:
        """A port on which nobody listens."""

    def connects_to_itself(self, address: str) -> str:
        """Listen at an own address and connect to it; return the error, "" when it works."""
        ...

    def connects_to(self, address: str, port: int) -> Reach:
        """Connect once, within a second, say nothing and hang up."""
        ...


class Disks(Protocol):
    """Room on file systems, which may never answer; live: doctor.live.disks.NodeDisks."""

    def space(self, path: str) -> Known[Space] | Unavailable:
        """Unavailable: no such path, or the file system does not answer."""
        ...


class Commands(Protocol):
    """Programs of this node, run with a deadline; live: doctor.live.probes.ChildCommands."""

    def run(self, argv: Sequence[str], seconds: float) -> Known[CommandResult] | Unavailable:
        """Run a command of this node within so many seconds."""


class GpuProbe(Protocol):
    """What NVML says of this node's GPUs; live: doctor.live.probes.NvmlChild."""

    def state(self) -> Known[GpuState] | Unavailable:
        """Unavailable: no binding, no library, or no answer; the reason says which."""
        ...


class TrainingProbe(Protocol):
    """The interpreter of training and its packages; live: doctor.live.probes.TrainingChild or WrittenVersions."""

    def ask(self) -> Known[TrainingInterpreter] | Unavailable:
        """What the interpreter of training says of its packages."""


class MeetingTrial(Protocol):
    """Where the daemons of a job's nodes meet, tried once from here."""

    url: str

    def problem(self) -> tuple[str, str]:
        """Return what is wrong and what to do, ("", "") where it can be used. Ends by itself within some seconds."""
        ...

    def exposed(self) -> str:
        """Return that the key of the nodes may be read by others, "" where it may not."""
        ...


@dataclass(frozen=True)
class Question:
    """What the person asked about."""

    logs: tuple[Path, ...] = ()
    evidence: Evidence | None = None  # what was read of them
    report: Report | None = None  # what `analyze` says of them; None: they tell nothing
    deepspeed: tuple[Path, ...] = ()
    scripts: tuple[Path, ...] = ()
    incidents: Path | None = None  # the daemon's folder of incidents
    job: str = ""  # of which incidents are read; "": those of the last day
    workers: int | None = None  # data-loader workers per rank
    local_ranks: int | None = None
    nodes: int | None = None
    python_given: bool = False  # --python: what is said about the interpreter is what was asked for


class DaemonFacts(msgspec.Struct, frozen=True):
    """What the daemon of this node says of itself: what it does is not to be called impossible."""

    user_id: int  # who runs it, by its socket
    sensors: Mapping[str, str]  # those that are up, with what they complain of all the same ("": nothing)
    down: Mapping[str, str] = {}  # those that are not, with why


@dataclass(frozen=True)
class Surroundings:
    """All that a check may see of the node, the ranks and what the person asked; parts that can block have
    deadlines."""

    root: Path  # "/" or a test's folder: /etc, /sys, /dev, /proc are read below it
    environments: tuple[NamedEnvironment, ...]
    ranks: tuple[RankFacts, ...]
    host_name: str
    user_id: int
    resolver: Resolver
    sockets: Sockets
    disks: Disks
    commands: Commands
    gpus: GpuProbe
    training: TrainingProbe
    question: Question = field(default_factory=Question)
    now_seconds: float = 0.0  # wall, for the age of files
    daemon: DaemonFacts | None = None  # of the daemon that answers here; None: none does
    meeting: MeetingTrial | None = None  # as the daemon's configuration names it; None: it names none
    ranks_unknown: str = ""  # why nobody knows whether ranks run here; "": `ranks` are all

    @property
    def proc(self) -> Path:
        """/proc of the node, or of a test's folder."""
        return self.root / "proc"

    def variable(self, name: str) -> tuple[str, NamedEnvironment] | None:
        """The value that counts: this shell's, which the next job gets; else a running rank's, else a file's. An empty
        one is none."""
        order = sorted(self.environments, key=lambda one: (one.is_file, one.rank is not None))
        return next(((one.values[name], one) for one in order if one.values.get(name)), None)

    def text(self, path: str) -> str | None:
        """The text of a small file below the root (path absolute); None when it cannot be read."""
        try:
            with open(self.root / path.lstrip("/"), "rb") as file:
                return file.read(1 << 20).decode("utf-8", "replace")
        except OSError:
            return None
