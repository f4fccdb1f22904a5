"""A job without hooks in which no rank has worked for a while: all that can be seen of it from outside.

This only prompts a look; what the stacks say is told only of a job that was seen to work before. What goes on beside
training (recorders, keep-alives, savers) is no work of it (`progress/outside.py`). A rank that computes on the CPU
keeps its job from being looked at, for ever if it never ends: an engine that polls its queue at full speed while its
workers wait looks the same from outside, at every look. Its hook tells the two apart.
"""

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import StallSection
from stallwatch.detectors.exit import went_on
from stallwatch.detectors.history import NodeHistory
from stallwatch.detectors.suspicion import Suspicion, due_of, stage_of
from stallwatch.model.finding import Finding
from stallwatch.model.snapshot import JobKey


class QuietState(msgspec.Struct, frozen=True):
    """The ranks that are suspect."""

    suspicions: tuple[Suspicion, ...] = ()


class QuietDetector:
    """Ranks without steps that do nothing any more."""

    name = "quiet"

    def __init__(self, stall: StallSection) -> None:
        self._stall = stall

    def start(self) -> QuietState:
        """The state before the first tick: no job is quiet."""
        return QuietState()

    def step(self, state: QuietState, seen: NodeHistory) -> tuple[QuietState, tuple[Finding, ...]]:
        """Given CPU, wakes and GPU counters, return a finding for each job none of whose ranks has a hook and all of
        which have been quiet for `quiet_seconds`."""
        suspicions: list[Suspicion] = []
        findings: list[Finding] = []
        for job, every in seen.jobs():
            ranks = [rank for rank in every if rank.alive]
            if not ranks or not self._stall.enabled or any(rank.heartbeat is not None for rank in ranks):
                continue  # who has a hook is watched by what it says
            known = [rank.outside for rank in ranks if rank.outside is not None]
            since_ns = max((rank.standing_since_ns() for rank in known), default=seen.at_ns)
            if len(known) < len(ranks) or seen.at_ns - since_ns < self._stall.quiet_seconds * SECOND_NS:
                continue
            suspicion = next((s for s in state.suspicions if s.job == job), None) or Suspicion(job, seen.at_ns)
            suspicions.append(suspicion)
            numbers = tuple(sorted(rank.sample.rank for rank in ranks))
            finding = self._finding(job, numbers, suspicion, since_ns, seen.at_ns)
            findings.append(msgspec.structs.replace(finding, went_on=went_on(every, seen.at_ns)))
        return QuietState(tuple(suspicions)), tuple(findings)

    def _finding(self, job: JobKey, ranks: tuple[int, ...], suspicion: Suspicion, since_ns: int, at_ns: int) -> Finding:
        return Finding(
            detector=self.name,
            stage=stage_of(suspicion, self._stall.second_look_seconds, at_ns),
            job=job,
            ranks=ranks,
            since_ns=since_ns,
            limit_seconds=self._stall.quiet_seconds,
            due_ns=due_of(suspicion, self._stall.second_look_seconds),
            reason="no rank here has computed, read or written for its training for "
            f"{(at_ns - since_ns) / SECOND_NS:.0f} s, nor has its GPU; nothing else is known of a job without "
            "stallwatch.attach()",
        )
