"""Generates what takes long in healthy jobs, one event after the other; the quiet stepping between is cut to a moment.

Where the lengths come from, none of them from a patience of ours:

- starts of up to an hour: torch.compile of large models, downloads and loading of weights, images that are pulled one
  node after the other. vLLM and Megatron users report 10-30 min, and an hour from shared storage.
- saves of 3-20 min with no word from the others (NVIDIA's resiliency extension says that heartbeats stop in save and
  load; dlrover allows 900 s; FlagScale 1267).
- one rank alone for half an hour to three: it tokenises or maps the data, the others stand in a barrier whose time-out
  the user has raised (trl 1519, LlamaFactory 2424, transformers 18054; index building of Megatron).
- evaluations of 5-60 min, by all ranks or by rank 0 alone (dlrover 1727 and 1730).
- storage that stands for up to 90 s: the grace time of an NFSv4 server that comes back (Linux' nfsv4gracetime).
- ends: ranks leave one after the other while rank 0 exports or uploads for up to half an hour.

torch itself ends what takes longer than the job's time-out: a job that needs three hours has asked for more.
"""

import random
from collections.abc import Iterator

from tests.replay.habits import Habits, long_habits
from tests.replay.healthy import ELSEWHERE, Moment, Stretch, moments_of

STEPS_SECONDS = (40.0, 90.0)  # between two events: enough for a rhythm to be learned
_SHARE_BEFORE_TIME_OUT = 0.78  # of the time-out at most: later than that everybody wants to know


def events(rng: random.Random, job: Habits) -> Iterator[Stretch]:
    """One life of a job: a start, then events without an end."""
    # Half of the long starts are seen to load; in others ranks wait for a peer, by a store or RPC, which no recorder
    # shows, and none of those that are here does any work.
    yield Stretch("load" if rng.random() < 0.5 else "queue", _log_uniform(rng, 20, 3300))
    yield Stretch("start", rng.uniform(5, 240))
    yield _alone(rng, job, "", _log_uniform(rng, 60, 10_800 if rng.random() < 0.2 else 1800))
    while True:
        yield from _steps(rng, job)
        kind = rng.choices(("save", "evaluate", "rank 0 evaluates", "data", "storage"), (45, 20, 15, 10, 10))[0]
        if kind == "save":
            yield _alone(rng, job, "checkpoint", _log_uniform(rng, 30, 1200))
        elif kind == "evaluate":
            yield Stretch("evaluate", _log_uniform(rng, 60, 3600), "eval" if job.names_phases else "")
        elif kind == "rank 0 evaluates":
            yield _alone(rng, job, "eval", _log_uniform(rng, 60, 3600))
        elif kind == "data":
            yield _alone(rng, job, "", _log_uniform(rng, 300, 10_800))
        else:
            yield Stretch("storage", rng.uniform(5, 90), "", rng.randrange(job.ranks))


def _steps(rng: random.Random, job: Habits) -> Iterator[Stretch]:
    left = max(rng.uniform(*STEPS_SECONDS), 12 * job.step_seconds)
    while left > 0:
        seconds = job.step_seconds * rng.lognormvariate(0, job.jitter)
        yield Stretch("step", seconds)
        left -= seconds


def _alone(rng: random.Random, job: Habits, phase: str, seconds: float) -> Stretch:
    """Rank 0 alone; its node is one of many."""
    here = rng.random() < max(job.ranks / job.world, 0.3)
    limit = _SHARE_BEFORE_TIME_OUT * (job.time_out_seconds or float("inf"))
    return Stretch("alone", min(seconds, limit), phase if job.names_phases else "", 0 if here else ELSEWHERE)


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())


def draw(rng: random.Random) -> Habits:
    """A job whose time-out its user has set: torch's default, or one that its data ask for."""
    job = long_habits(rng)
    return job._replace(time_out_seconds=rng.choice((600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 21_600.0)))


def moments(seed: int, hours: float) -> Iterator[Moment]:
    """One job's node, tick by tick, for so long."""
    return moments_of(seed, hours, draw, events, in_short=True)
