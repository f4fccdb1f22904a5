"""What a capture is told on the privileged side, what the daemon's own end of it is told, and what comes of both."""

import msgspec

from stallwatch.config import CaptureSection
from stallwatch.model.gpu import Gpu


class Settings(msgspec.Struct, frozen=True):
    """What captures are told by their own side alone."""

    capture: CaptureSection
    seconds: float  # of a whole look, after which it is ended
    sample_seconds: float


class Order(Settings, frozen=True, kw_only=True):
    """To a capture: its side's settings, and of a request its words."""

    ranks: tuple[tuple[int, int], ...]  # pid and start ticks, as the daemon asked
    known: int  # the descriptor of node.known_ranks
    held: int  # that of its table of ranks that are paused (captures.held)
    look: int = 1
    at_ns: int = 0  # CLOCK_MONOTONIC, of a sample: all ranks dump at this moment
    profile_seconds: int = 0  # of a look: stacks of the ranks over this time, too


class KeepSpec(msgspec.Struct, frozen=True):
    """To the process that writes down what a capture sends."""

    bundle: str
    look: int
    node: str
    ranks: tuple[int, ...]
    gpus: tuple[tuple[Gpu, ...], ...] = ()
    owner: str = ""  # of the job, as the incident has it
    keep_bytes: int = 2 << 30  # incidents.keep_bytes


class CaptureState(msgspec.Struct, frozen=True):
    """Where a look stands. Judge as soon as `evidence_complete` or `done`; what comes in between only adds detail."""

    done: bool
    evidence_complete: bool  # every target answered for stacks or is gone; recorders answered or are known not to
    missing: tuple[str, ...] = ()  # sentences: "rank 3: flight recorder asked, not answered within 8 s"
    problem: str = ""  # the child itself failed or was given up: why
