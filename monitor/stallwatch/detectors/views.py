"""Ranks as people see them: state, ages, and the limit in force with its reason."""

from collections.abc import Mapping
from statistics import median

from stallwatch.config import StallSection
from stallwatch.detectors.deaths import is_ending
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.detectors.limits import SECOND_NS
from stallwatch.detectors.rank_limit import rank_limit
from stallwatch.detectors.shares import Shares
from stallwatch.model.finding import Finding, RankState
from stallwatch.model.gpu import Gpu
from stallwatch.model.incident import RankView
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey

_WAITING_NS = 2 * SECOND_NS  # an operation pending for longer is worth showing


def rank_views(
    seen: NodeHistory,
    findings: tuple[Finding, ...],
    stall: StallSection,
    shares: Mapping[tuple[JobKey, int, int], Shares],
) -> tuple[RankView, ...]:
    """Given what is known and what was found (`shares`: detectors.slow), return one view per rank's process."""
    gpus = seen.gpus
    views = []
    for _, ranks in seen.jobs():
        ending = is_ending(ranks)
        for rank in ranks:
            state = _state(rank, seen.at_ns, findings, ending)
            of_rank = shares.get((rank.sample.job, rank.sample.rank, rank.sample.pid))
            views.append(_view(rank, seen.at_ns, state, gpus, stall, of_rank))
    return tuple(views)


def _view(
    rank: RankHistory,
    at_ns: int,
    state: RankState,
    gpus: tuple[Gpu, ...],
    stall: StallSection,
    shares: Shares | None,
) -> RankView:
    sample, heartbeat = rank.sample, rank.heartbeat
    limit = rank_limit(rank, stall)
    return RankView(
        job=sample.job,
        rank=sample.rank,
        local_rank=sample.local_rank,
        world_size=sample.world_size,
        pid=sample.pid,
        state=state,
        step=heartbeat.step if heartbeat else None,
        step_seconds=median(heartbeat.step_durations_ns) / SECOND_NS
        if heartbeat and heartbeat.step_durations_ns
        else None,
        beat_age_seconds=(at_ns - rank.ticks.step_since_ns) / SECOND_NS if rank.counts_steps else None,
        pulse_age_seconds=(at_ns - rank.ticks.pulse_since_ns) / SECOND_NS if heartbeat else None,
        phase=rank.phase,
        limit_seconds=limit.seconds if limit.learned else None,
        limit_reason=limit.reason if rank.has_words else "no hook and no recorder: nothing to watch but the process",
        gpu_uuid=next((gpu.uuid for gpu in gpus if sample.pid in (gpu.compute_pids or ())), None),
        communication_share=shares.communication if shares else None,
        slow_share=shares.slow if shares else None,
    )


def _state(rank: RankHistory, at_ns: int, findings: tuple[Finding, ...], ending: bool) -> RankState:
    process = rank.sample.process
    if not rank.alive:
        return "gone"
    if isinstance(process, Known) and process.value.state in ("T", "t"):
        return "stopped"
    if not rank.readable:
        return "unknown"
    if any(f.job == rank.sample.job and rank.sample.rank in f.ranks and f.family == "hang" for f in findings):
        return "waiting" if rank.pending else "suspect"  # who waits is not who holds up
    if ending:
        return "ending"
    if rank.phase:
        return "phase"
    if not rank.begun:
        return "starting"
    if rank.pending and at_ns - rank.progress_since_ns > _WAITING_NS:
        return "waiting"
    return "stepping"
