"""What stays the same in one generated job. Where the numbers come from:

- step lengths: 20 ms to 60 s. Megatron-Turing NLG reports 44-60 s per iteration on 2,240-3,360 GPUs (arXiv 2201.11990,
  table of end-to-end times); DDP jobs on one node take tens of milliseconds.
- jitter of a step: log-normal, 1-9 %: 9 % of GPU time variability at 64 thousand GPUs, up to 14 % between GPUs on the
  same GEMM (PRISM, arXiv 2510.15596).
- checkpoints of seconds to 20 min with no word from the others (NVIDIA's resiliency extension says that heartbeats stop
  in save and load; dlrover allows 900 s).
- first steps of 5-180 s (compilation, autotuning; dlrover PR 1730 flagged one), evaluations of 5-50 steps' length.
- what waits for one rank alone: at most 15 min, patience's default; a rank alone for longer is told by design.
- storage that stands for 5-40 s, once or twice an hour.
- who comes last in a collective: each step draws anew who has the longer batch (up to 10 %), each collective a little;
  ranks differ by 1 % for good (PRISM's spread of GPUs on one GEMM is larger, but a step averages over many).
- NCCL's completed counts are noted every 0.1 s, in each rank at its own time (torch's watchdog).
- the rest (share of waiting, rate of long steps 0.5 %, drift up to 3 times within an hour, restarts, ends) is assumed,
  and wide on purpose.
"""

import random
from typing import NamedTuple

STEP_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 12.0, 30.0, 60.0)
LONGEST_ALONE_SECONDS = 890.0


class Habits(NamedTuple):
    """What stays the same in one job."""

    ranks: int
    step_seconds: float
    jitter: float
    long_share: float
    waits: tuple[float, ...]  # share of its time that each rank stands in a collective, by design
    collectives: int  # per step
    names_phases: bool
    evaluates_every_seconds: float
    saves_every_seconds: float
    save_seconds: float
    drift_per_hour: float
    rollouts: bool
    batches: float  # log-spread of the ranks' shares of one step's work
    pace: tuple[float, ...]  # each rank's own, for good
    recorder: str
    world: int = 0  # ranks of the whole job, most of them on nodes that are not seen; 0: all are here
    exports_seconds: float = 0.0  # what rank 0 does at the end, when the others have left
    time_out_seconds: float | None = None  # torch's own, which such a job needs; None: nobody asked for it


def habits(rng: random.Random) -> Habits:
    """Draw a job."""
    ranks = rng.choice((2, 2, 2, 4, 4, 8))
    step_seconds = rng.choice(STEP_SECONDS) * rng.uniform(0.7, 1.4)
    waits = rng.uniform(0.02, 0.6)
    imbalanced = rng.random() < 0.25  # pipeline stages, experts: half of the ranks wait less, steadily
    return Habits(
        ranks,
        step_seconds,
        rng.uniform(0.01, 0.09),
        rng.choice((0.0, 0.002, 0.005)),
        tuple(waits * (0.4 if imbalanced and rank >= ranks // 2 else 1.0) for rank in range(ranks)),
        rng.choice((1, 4, 50)),
        rng.random() < 0.5,
        rng.uniform(300, 3600),
        rng.uniform(600, 3600),
        min(rng.lognormvariate(3.5, 1.2), 1200.0),
        rng.choice((0.0, 0.0, 0.2, 2.0)),
        rng.random() < 0.1,
        rng.choice((0.005, 0.03, 0.1)),
        tuple(rng.lognormvariate(0, 0.01) for _ in range(ranks)),
        rng.choice(("gloo", "nccl")),
    )


def long_habits(rng: random.Random) -> Habits:
    """Draw a job in which one thing after the other takes long: sources in tests/replay/long_events.py."""
    job = habits(rng)
    ranks = rng.choice((2, 4, 8, 8))
    world = rng.choice((ranks, ranks, 64, 512, 1024, 8192))
    drawn = [rng.lognormvariate(0, 0.01) for _ in range(ranks)]
    waits = (job.waits[0],) * ranks
    exports = 30 * 60 ** rng.random() if rng.random() < max(ranks / world, 0.3) else 0.0
    return job._replace(
        ranks=ranks, world=world, pace=tuple(drawn), waits=waits, step_seconds=min(job.step_seconds, 5.0),
        long_share=0.0, rollouts=False, exports_seconds=exports,
    )  # fmt: skip
