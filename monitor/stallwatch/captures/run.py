"""One look at the given ranks, taken by a child process that the daemon is willing to lose."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch.config import Config
from stallwatch.model.snapshot import GpuSample, RankSample


class CaptureState(msgspec.Struct, frozen=True):
    """Where a look stands. Judge as soon as `evidence_complete` or `done`; what comes in between only adds detail."""

    done: bool
    evidence_complete: bool  # every target answered for stacks or is gone; recorders answered or are known not to
    missing: tuple[str, ...] = ()  # sentences: "rank 3: flight recorder asked, not answered within 8 s"
    problem: str = ""  # the child itself failed or was given up: why


class CaptureRun:
    """Starts at construction; the bundle folder is valid at every moment, each file appears whole."""

    def __init__(
        self,
        bundle: Path,
        targets: Sequence[RankSample],
        look: int,
        config: Config,
        *,
        node: str,
        gpus: Sequence[tuple[GpuSample, ...]] = (),
        rank_directory: Path | None = None,
    ) -> None:
        """Begin look number `look` (1, 2, …) at `targets`, writing below `bundle`.

        `gpus` are the samples of the last snapshots, oldest first. `rank_directory` is where hooks write
        (`sensors.heartbeats.rank_directory(config)` when not given). Raise OSError when no process can be started.
        """
        raise NotImplementedError

    def poll(self) -> CaptureState:
        """Return at once with what is known so far; end the child when it is past `capture.seconds`."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Stop now and leave no rank stopped; what was written stays."""
        raise NotImplementedError
