"""What a capture is told on the privileged side, what the daemon's own end of it is told, and what comes of both."""

from typing import Literal

import msgspec

from stallwatch.config_sections import CaptureSection
from stallwatch.model.gpu import Gpu
from stallwatch.model.summary import SampleMemory
from stallwatch.model.verdict import Verdict

Evidence = Literal[
    "process", "heartbeat", "stacks", "profile", "recorder", "torch_dump", "user_files", "kernel_log", "nccl_ras"
]


class LookKind(msgspec.Struct, frozen=True):
    """What a look asks for, how, and what that may take. `name` is the privileged side's verb for it."""

    name: str
    evidence: frozenset[Evidence]
    first_rungs: tuple[str, ...]  # of the recorder, at the first look and at later ones (captures.flight_recorder)
    later_rungs: tuple[str, ...]
    deadline: str  # the key with the seconds that it may take
    heartbeat_last: bool = False  # each rank's record is read after its dump: its steps then cover the entries
    pauses: bool = False  # it may hold ranks, and lets them go before it ends


INCIDENT = LookKind(
    "look",
    frozenset(
        ("process", "heartbeat", "stacks", "profile", "recorder", "torch_dump", "user_files", "kernel_log", "nccl_ras")
    ),
    first_rungs=("active", "entries"),
    later_rungs=("entries",),
    deadline="capture.seconds",
    pauses=True,
)
# Of a job that moves: entries without stacks hold the GIL for 28 ms (2,000 entries under NCCL), not for seconds.
SAMPLE = LookKind(
    "sample",
    frozenset(("recorder",)),
    first_rungs=("entries",),
    later_rungs=("entries",),
    deadline="drift.seconds",
    heartbeat_last=True,
)
KINDS = {kind.name: kind for kind in (INCIDENT, SAMPLE)}


class CaptureSettings(msgspec.Struct, frozen=True):
    """What captures are told by their own side alone."""

    capture: CaptureSection
    seconds: float  # of a whole look, after which it is ended
    sample_seconds: float


class CaptureOrder(CaptureSettings, frozen=True, kw_only=True):
    """To a capture: its side's settings, and of a request its words."""

    ranks: tuple[tuple[int, int], ...]  # pid and start ticks, as the daemon asked
    known: int  # the descriptor of node.known_ranks
    held: int  # that of its table of ranks that are paused (captures.held)
    kind: str = INCIDENT.name  # of KINDS
    look: int = 1
    at_ns: int = 0  # CLOCK_MONOTONIC, of a sample: all ranks dump at this moment
    profile_seconds: int = 0  # of a look: stacks of the ranks over this time, too
    call_sites: int = 0  # 1: the job is known to stand, recorders may be asked where each call was made

    @property
    def recorder_seconds(self) -> float:
        """How long each rank's recorder is waited for."""
        return self.sample_seconds / 2 if self.kind == SAMPLE.name else self.capture.dump_seconds


class Sampling(msgspec.Struct, frozen=True):
    """Of a look at a job that moves: ranks dump at the same moment and are compared; nothing is kept."""

    at_ns: int  # CLOCK_MONOTONIC
    world_size: int
    before: SampleMemory  # what the sample before left


class Compared(msgspec.Struct, frozen=True):
    """What came of a sample."""

    ranks: int  # whose recorders answered
    verdicts: tuple[Verdict, ...]
    memory: SampleMemory
    problem: str = ""


class KeepSpec(msgspec.Struct, frozen=True):
    """To the process that writes down what a capture sends."""

    bundle: str  # "": a folder of its own, in memory
    look: int
    node: str
    ranks: tuple[int, ...]
    gpus: tuple[tuple[Gpu, ...], ...] = ()
    owner: str = ""  # of the job, as the incident has it
    keep_bytes: int = 2 << 30  # incidents.keep_bytes
    sampling: Sampling | None = None


class CaptureState(msgspec.Struct, frozen=True):
    """Where a look stands. Judge as soon as `evidence_complete` or `done`; what comes in between only adds detail."""

    done: bool
    evidence_complete: bool  # every target answered for stacks or is gone; recorders answered or are known not to
    missing: tuple[str, ...] = ()  # sentences: "rank 3: flight recorder asked, not answered within 8 s"
    problem: str = ""  # the child itself failed or was given up: why
    compared: Compared | None = None  # of a sample that is done
