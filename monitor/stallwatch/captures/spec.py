"""What a capture's child process is told, as JSON on its standard input, and what it tells back, a line at a time."""

import msgspec

from stallwatch.config import CaptureSection
from stallwatch.model.snapshot import GpuSample, RankSample


class Spec(msgspec.Struct, frozen=True):
    bundle: str
    look: int
    node: str
    targets: tuple[RankSample, ...]
    gpus: tuple[tuple[GpuSample, ...], ...]
    capture: CaptureSection


class CaptureState(msgspec.Struct, frozen=True):
    """Where a look stands. Judge as soon as `evidence_complete` or `done`; what comes in between only adds detail."""

    done: bool
    evidence_complete: bool  # every target answered for stacks or is gone; recorders answered or are known not to
    missing: tuple[str, ...] = ()  # sentences: "rank 3: flight recorder asked, not answered within 8 s"
    problem: str = ""  # the child itself failed or was given up: why
