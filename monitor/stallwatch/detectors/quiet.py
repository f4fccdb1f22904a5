"""A job without hooks in which no rank has worked for a while, or one alone: all that can be seen of it from outside.

This only prompts a look; what the stacks say is told only of a job that was seen to work before. What goes on beside
training (recorders, keep-alives, savers) is no work of it (`progress/outside.py`). Where one rank works on and each
other stands, these must have taken part in collectives for long: at a start rank 0 prepares for all. Under NCCL who
computes in one loop and who waits both spin, and are quiet.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import StallSection
from stallwatch.detectors.exit import went_on
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.suspicion import Suspicion, due_of, stage_of
from stallwatch.model.finding import Finding
from stallwatch.model.process import STOPPED
from stallwatch.model.reading import known
from stallwatch.model.snapshot import JobKey

_ALONE_TIMES = 2  # the patience with one rank that works alone: it validates, saves, tokenises now and then


class QuietState(msgspec.Struct, frozen=True):
    """The ranks that are suspect."""

    suspicions: tuple[Suspicion, ...] = ()


class _Quiet(NamedTuple):
    """The ranks of a job that do nothing any more."""

    ranks: tuple[int, ...]
    since_ns: int
    limit_seconds: float
    who: str


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
        which have been quiet for `quiet_seconds`, or all but one for twice as long."""
        suspicions: list[Suspicion] = []
        findings: list[Finding] = []
        for job, every in seen.jobs():
            ranks = [rank for rank in every if rank.alive]
            if not ranks or not self._stall.enabled or any(rank.heartbeat is not None for rank in ranks):
                continue  # who has a hook is watched by what it says
            quiet = self._quiet(ranks, seen.at_ns)
            if quiet is None:
                continue
            suspicion = next((s for s in state.suspicions if s.job == job), None) or Suspicion(job, seen.at_ns)
            suspicions.append(suspicion)
            finding = self._finding(job, quiet, suspicion, seen.at_ns)
            findings.append(msgspec.structs.replace(finding, went_on=went_on(every, seen.at_ns)))
        return QuietState(tuple(suspicions)), tuple(findings)

    def _quiet(self, ranks: Sequence[RankHistory], at_ns: int) -> _Quiet | None:
        seconds = self._stall.quiet_seconds
        seen = [(rank.sample.rank, rank.outside) for rank in ranks if rank.outside is not None]
        if len(seen) < len(ranks):
            return None
        since_ns = max(outside.standing_since_ns() for _, outside in seen)
        if at_ns - since_ns >= seconds * SECOND_NS:
            return _Quiet(tuple(sorted(rank for rank, _ in seen)), since_ns, seconds, "no rank here")
        if any(_is_stopped(rank) for rank in ranks):
            return None  # who is held at its place neither works nor waits; another detector tells of it
        seconds *= _ALONE_TIMES
        working = [(rank, since) for rank, outside in seen if (since := outside.works_since_ns()) is not None]
        others = [(rank, outside) for rank, outside in seen if outside.works_since_ns() is None]
        if len(working) != 1 or not others:
            return None
        [(alone, since_ns)] = working
        since_ns = max(since_ns, *(outside.standing_since_ns() for _, outside in others))
        if at_ns - since_ns < seconds * SECOND_NS or not all(outside.has_communicated for _, outside in others):
            return None
        numbers = tuple(sorted(rank for rank, _ in others))
        return _Quiet(numbers, since_ns, seconds, f"no rank here but rank {alone}, which works on,")

    def _finding(self, job: JobKey, quiet: _Quiet, suspicion: Suspicion, at_ns: int) -> Finding:
        return Finding(
            detector=self.name,
            stage=stage_of(suspicion, self._stall.second_look_seconds, at_ns),
            job=job,
            ranks=quiet.ranks,
            since_ns=quiet.since_ns,
            limit_seconds=quiet.limit_seconds,
            due_ns=due_of(suspicion, self._stall.second_look_seconds),
            reason=f"{quiet.who} has computed, read or written for its training for "
            f"{(at_ns - quiet.since_ns) / SECOND_NS:.0f} s, nor has its GPU; nothing else is known of a job without "
            "stallwatch.attach()",
        )


def _is_stopped(rank: RankHistory) -> bool:
    process = known(rank.sample.process)
    return process is not None and process.state in STOPPED
