"""What else the life of an incident needs to know of a job: is it alive, ending, moving, quiet by wish, debugged?"""

from collections.abc import Collection, Mapping

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.exit import end_of, failed_by_itself, is_ending
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey
from stallwatch.progress.cpu_time import CLOCK_TICK_NS

_WAITS_NS = 5 * SECOND_NS
_LEFT_ALONE_NS = 3 * SECOND_NS  # a debugger has gone: what it held up moves again within this, or is told


class JobFacts(msgspec.Struct, frozen=True):
    """A job on this node, as incidents ask about it."""

    job: JobKey
    world_size: int
    ranks: tuple[int, ...]  # on this node, ended ones included
    alive: tuple[int, ...]
    moved: bool  # some rank moved at this tick
    begun: bool  # past its start
    ending: bool  # SIGTERM or exit 0 was its first end
    opted_out: bool  # STALLWATCH_NOTIFY=off
    debugged: tuple[int, ...] = ()  # ranks under a tracer, or a moment ago
    in_terminal: bool = False
    working: tuple[int, ...] = ()  # ranks that stand still and compute: their main threads or what they started
    phases: tuple[tuple[int, str], ...] = ()  # (rank, phase) of ranks inside one
    hooked: bool = True  # one of its ranks has a hook
    failed: bool = False  # its first end was a failure of its own
    left: tuple[int, ...] = ()  # ranks here that have ended with exit code 0
    finished: bool = False  # every rank here has ended with exit code 0
    phase_past_seconds: float = 0.0  # the longest that those phases have lasted before, 0 where they are new
    oldest_ns: int = 0  # as `began_ns`, of the oldest that is alive
    waiting: tuple[int, ...] = ()  # ranks of which an operation has been pending for some seconds, without another
    # Of ranks that count no steps (CLOCK_MONOTONIC): rank, when it was last seen at work, and when any but its training
    # thread was.
    worked: tuple[tuple[int, int, int], ...] = ()
    io_unseen: bool = False  # what one of them reads and writes may not be read
    began_ns: int = 0  # CLOCK_BOOTTIME when the youngest of the ranks here began, dead or alive; 0: not known

    def worked_ns(self, waiting: Collection[int]) -> int:
        """When one of its ranks was last seen at work. What the training thread of one that waits for others takes is
        no work: it polls, or spins."""
        return max((beside if rank in waiting else any_ for rank, any_, beside in self.worked), default=0)


def job_facts(seen: NodeHistory, passed: Mapping[JobKey, int]) -> tuple[JobFacts, ...]:
    """Every job of the node; `passed`: the last end that a job has gone on after (`detectors.exit`)."""
    return tuple(_facts(job, ranks, seen.at_ns, passed.get(job, 0)) for job, ranks in seen.jobs())


def _is_debugged(rank: RankHistory, at_ns: int) -> bool:
    return rank.traced_ns is not None and at_ns - rank.traced_ns <= _LEFT_ALONE_NS


def _waits(rank: RankHistory, at_ns: int) -> bool:
    return rank.pending and at_ns - rank.ticks.counters_since_ns >= _WAITS_NS


def _facts(job: JobKey, ranks: tuple[RankHistory, ...], at_ns: int, passed_ns: int) -> JobFacts:
    alive = [rank for rank in ranks if rank.alive]
    processes = [(r.sample.rank, r.sample.process.value) for r in alive if isinstance(r.sample.process, Known)]
    return JobFacts(
        job=job,
        world_size=max(rank.sample.world_size for rank in ranks),
        ranks=tuple(sorted({rank.sample.rank for rank in ranks})),
        alive=tuple(sorted({rank.sample.rank for rank in alive})),
        moved=any(rank.moved for rank in alive),
        begun=any(rank.begun for rank in ranks),
        ending=is_ending(ranks, passed_ns),
        failed=failed_by_itself(ranks),
        left=tuple(sorted({r.sample.rank for r in ranks if r.sample.end and r.sample.end.exit_code == 0})),
        finished=not alive and all(end_of(rank).exit_code == 0 for rank in ranks),
        hooked=any(rank.heartbeat is not None for rank in ranks),
        opted_out=any(rank.heartbeat is not None and not rank.heartbeat.notify for rank in ranks),
        debugged=tuple(sorted({rank.sample.rank for rank in alive if _is_debugged(rank, at_ns)})),
        in_terminal=any(process.has_terminal for _, process in processes),
        working=tuple(sorted({rank.sample.rank for rank in alive if rank.works(at_ns)})),
        phases=tuple((rank.sample.rank, rank.phase) for rank in alive if rank.phase),
        phase_past_seconds=max(
            (lasted for rank in alive if rank.phase for lasted in rank.times_of_phase(rank.phase).recent), default=0
        )
        / SECOND_NS,
        worked=tuple((rank.sample.rank, rank.ticks.worked_ns, rank.ticks.worked_beside_ns) for rank in alive),
        io_unseen=any(None in (process.read_bytes, process.write_bytes) for _, process in processes),
        waiting=tuple(sorted({rank.sample.rank for rank in alive if _waits(rank, at_ns)})),
        oldest_ns=min((max(rank.sample.start_ticks, 0) for rank in alive), default=0) * CLOCK_TICK_NS,
        began_ns=max((max(rank.sample.start_ticks, 0) for rank in ranks), default=0) * CLOCK_TICK_NS,
    )
