"""What a self-test found: the fields of `stallwatch selftest --json`."""

from typing import Literal

import msgspec

from stallwatch.errors import StallwatchError
from stallwatch.model.verdict import Verdict

SCHEMA_VERSION = 1
BEFORE_COLLECTIVES = ("start", "device", "store", "meeting", "init")

StepOutcome = Literal["ok", "wrong", "error", "unsupported", "unfinished"]
FailureKind = Literal["absent", "stalled", "wrong", "error", "died"]


class OwnFailure(StallwatchError):
    """The test itself did not work (exit code 70): nothing is known about the node."""


class StepResult(msgspec.Struct, frozen=True):
    """One step over all ranks that reported it."""

    step: str
    bytes: int | None
    outcome: StepOutcome  # the worst of all ranks
    ranks: tuple[int, ...]  # whose outcome it is
    seconds: float | None = None  # of the slowest rank
    bus_bytes_per_second: int | None = None  # of the slowest rank, as nccl-tests define it
    detail: str = ""


class Device(msgspec.Struct, frozen=True):
    """On which host and GPU a rank worked, and as which process; a fact that it did not tell is None."""

    rank: int
    host: str
    pid: int | None
    index: int | None = None
    name: str | None = None  # None: the CPU
    uuid: str | None = None


class NodeFinding(msgspec.Struct, frozen=True):
    """What the node checks (`stallwatch doctor`) found where a step before the process group failed."""

    check: str
    severity: str
    subject: str
    seen: str
    why: str
    remedy: str


class Failure(msgspec.Struct, frozen=True):
    """The first thing that was not as it must be; what follows from it is left out."""

    kind: FailureKind
    step: str
    bytes: int | None
    culprits: tuple[int, ...]  # ranks; empty when nothing tells
    summary: str
    verdict: Verdict | None = None  # by the evidence of a stalled job, as the daemon judges it
    missing: tuple[str, ...] = ()


class TrialResult(msgspec.Struct, frozen=True):
    """One job, from start to end."""

    backend: str | None
    ranks: int
    seconds: float
    steps: tuple[StepResult, ...]
    devices: tuple[Device, ...]
    failure: Failure | None = None
    torch: str | None = None
    nccl: str | None = None
    master: str = ""  # address:port of the store at which they met

    @property
    def ok(self) -> bool:
        """Whether nothing failed in this job."""
        return self.failure is None

    @property
    def failed_at_start(self) -> bool:
        """Whether a step before the first collective failed: then the node's own faults come first."""
        return self.failure is not None and self.failure.step in BEFORE_COLLECTIVES


class BisectTrial(msgspec.Struct, frozen=True):
    """The failing step once more, with one thing changed."""

    change: str
    environment: dict[str, str | None]  # None: taken away
    ranks: int
    devices: tuple[int, ...]  # GPUs by index; empty: as before
    outcome: Literal["passes", "fails", "fails_otherwise", "not_run"]
    detail: str = ""
    seconds: float = 0.0


class Bisection(msgspec.Struct, frozen=True):
    """What the search tried, in order, and what follows from it in sentences."""

    trials: tuple[BisectTrial, ...]
    conclusions: tuple[str, ...]


class NcclTests(msgspec.Struct, frozen=True):
    """What NVIDIA's all_reduce_perf said."""

    ok: bool
    average_bus_bytes_per_second: int | None
    detail: str = ""


class SelfTestReport(msgspec.Struct, frozen=True):
    """All that one self-test found, as `stallwatch selftest --json` prints it."""

    schema_version: int
    tool_version: str
    ok: bool | None  # None: the test itself did not work, and says nothing about the node
    node: str
    python: str = ""
    trial: TrialResult | None = None
    node_findings: tuple[
        NodeFinding, ...
    ] = ()  # the worst first; asked for where it failed before the first collective
    warnings: tuple[str, ...] = ()
    bisection: Bisection | None = None
    nccl_tests: NcclTests | None = None
    problem: str = ""  # of the test itself
    seconds: float = 0.0

    @property
    def failed_at_start(self) -> bool:
        """Whether it failed before the first collective, or did not even begin (a torch that cannot be imported, a
        setting that torch refuses): then the node's own faults come first."""
        return self.ok is None or (self.trial is not None and self.trial.failed_at_start)
