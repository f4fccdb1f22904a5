"""A job without hooks in which no rank has worked for a while, or a few alone: all that can be seen of it from outside.

This only prompts a look; what the stacks say is told only of a job that was seen to work before. What goes on beside
training (recorders, keep-alives, savers) is no work of it (`progress/outside.py`). Where some ranks work on, half of
all at most, and each other stands, these must have taken part in collectives for long: at a start rank 0 prepares for
all. Under NCCL who computes in one loop and who waits both spin, and are quiet.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import StallSection
from stallwatch.detectors.exit import went_on
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.suspicion import Suspicion, due_of, stage_of
from stallwatch.formats.rank_ranges import named_ranks
from stallwatch.model.finding import Finding
from stallwatch.model.process import STOPPED
from stallwatch.model.reading import known
from stallwatch.model.snapshot import JobKey
from stallwatch.progress.outside import Outside

_ALONE_TIMES = 2  # the patience with ranks that work alone: they validate, save, tokenise now and then
_NOW_AND_THEN_TIMES = 3  # with those that do so by fits and starts: each time that may be the end of a wait


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
        which have been quiet for `quiet_seconds`, or half of which for twice as long."""
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
        return _alone(seen, at_ns, seconds) or _alone_now_and_then(seen, at_ns, seconds)

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


def _alone(seen: Sequence[tuple[int, Outside]], at_ns: int, quiet_seconds: float) -> _Quiet | None:
    """Some work on, and have for long."""
    working = {rank: since_ns for rank, outside in seen if (since_ns := outside.works_since_ns()) is not None}
    began_ns = max(working.values(), default=0)
    return _waiting_for(seen, working, began_ns, at_ns, quiet_seconds * _ALONE_TIMES)


def _alone_now_and_then(seen: Sequence[tuple[int, Outside]], at_ns: int, quiet_seconds: float) -> _Quiet | None:
    """Some work for a moment, and pause for longer than who trains, again and again: a poll that is dear, a call that
    is tried anew."""
    long_ns = quiet_seconds * SECOND_NS
    working = [rank for rank, outside in seen if at_ns - outside.standing_since_ns() < long_ns]
    return _waiting_for(seen, working, 0, at_ns, quiet_seconds * _NOW_AND_THEN_TIMES)


def _waiting_for(
    seen: Sequence[tuple[int, Outside]], working: Collection[int], began_ns: int, at_ns: int, limit_seconds: float
) -> _Quiet | None:
    """The others, if they have stood for so long since these began. More than half may well do without the others."""
    waiting = [(rank, outside) for rank, outside in seen if rank not in working]
    if not working or not waiting or len(working) > len(waiting):
        return None
    since_ns = max(began_ns, *(outside.standing_since_ns() for _, outside in waiting))
    if at_ns - since_ns < limit_seconds * SECOND_NS or not all(outside.has_communicated for _, outside in waiting):
        return None
    who = f"no rank here but {named_ranks(working)}, which work{'s' * (len(working) == 1)} on,"
    return _Quiet(tuple(sorted(rank for rank, _ in waiting)), since_ns, limit_seconds, who)


def _is_stopped(rank: RankHistory) -> bool:
    process = known(rank.sample.process)
    return process is not None and process.state in STOPPED
