"""A job whose ranks are here and do not begin: some may be missing at rendezvous, or stuck before the first step.

Loading a model looks the same from outside. This only makes us look; what is told waits for the verdict and for
`tell.start_seconds`.
"""

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import StallSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.suspicion import Suspicion, due_of, stage_of
from stallwatch.model.finding import Finding


class InitState(msgspec.Struct, frozen=True):
    """The starts that are suspect."""

    suspicions: tuple[Suspicion, ...] = ()


class InitDetector:
    """A start that goes on for longer than a start does."""

    name = "init"

    def __init__(self, stall: StallSection) -> None:
        self._stall = stall

    def start(self) -> InitState:
        """The state before the first tick: no start is suspected."""
        return InitState()

    def step(self, state: InitState, seen: NodeHistory) -> tuple[InitState, tuple[Finding, ...]]:
        """Given ranks that have not begun, return a finding for each job whose start takes longer than it may."""
        suspicions, findings = [], []
        for job, ranks in seen.jobs():
            before = next((s for s in state.suspicions if s.job == job), None)
            since_ns = _standing_since(ranks, suspected=before is not None)
            if since_ns is None:
                continue
            age_seconds = (seen.at_ns - since_ns) / SECOND_NS
            if age_seconds + 0.1 < self._stall.start_seconds:
                continue
            suspicion = before or Suspicion(job, seen.at_ns)
            suspicions.append(suspicion)
            here = tuple(sorted({rank.sample.rank for rank in ranks if rank.alive}))
            world_size = max(rank.sample.world_size for rank in ranks)
            findings.append(
                Finding(
                    detector=self.name,
                    stage=stage_of(suspicion, self._stall.second_look_seconds, seen.at_ns),
                    job=job,
                    ranks=here,
                    since_ns=since_ns,
                    limit_seconds=self._stall.start_seconds,
                    due_ns=due_of(suspicion, self._stall.second_look_seconds),
                    reason=f"{len(here)} of {world_size} ranks are here; none has begun to step and nothing "
                    f"has moved for {age_seconds:.1f} s",
                )
            )
        return InitState(tuple(suspicions)), tuple(findings)


def _standing_since(ranks: tuple[RankHistory, ...], *, suspected: bool) -> int | None:
    """Return since when nothing moves in a job that has not begun, None where that is not so."""
    alive = [rank for rank in ranks if rank.alive]
    hooked = [rank for rank in alive if rank.readable or (suspected and rank.heartbeat)]
    if not hooked or (len(hooked) < len(ranks) and len(alive) < len(ranks)) or any(rank.begun for rank in alive):
        return None
    # A process that just arrived without a hook is movement too: the job is still gathering.
    return max(max(rank.first_seen_ns, rank.progress_since_ns) for rank in alive)
