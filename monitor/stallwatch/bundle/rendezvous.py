"""Ranks of a job that are not in its bundle: a node's snapshot holds all jobs, and may hold the rest of this one under
another meeting place, or show that there is no rest."""

from collections.abc import Sequence
from typing import Final

from stallwatch.model.rendezvous import Apart, Rendezvous
from stallwatch.model.snapshot import RankSample

# A job that meets here is on this node as a whole.
_LOOPBACK: Final = ("127.", "localhost", "::1", "[::1]")


def others_of_job(samples: Sequence[RankSample], training_job: str | None, epoch: str, world_size: int) -> Rendezvous:
    """Given a node's ranks and the name of one job's life, return where its ranks were told to meet. Of a life that is
    over, where those were told that lived as its first rank ended: a time-out at the start ends them all."""
    place = meeting_place(epoch)
    of_job = [s for s in samples if s.job.training_job == training_job and s.world_size == world_size]
    ends = [sample.end for sample in of_job if sample.job.epoch == epoch]
    first_ns = min((end.at_ns for end in ends if end is not None), default=0) if None not in ends else None
    lived = [s for s in of_job if s.end is None or (first_ns is not None and s.end.at_ns >= first_ns)]
    own = {sample.rank for sample in lived if sample.job.epoch == epoch}
    apart = {
        sample.rank: Apart(sample.rank, there)
        for sample in lived
        if sample.rank not in own and (there := meeting_place(sample.job.epoch)) != place
    }
    ended = {sample.rank for sample in samples if sample.end is not None and sample.job.training_job == training_job}
    local = place.startswith(_LOOPBACK)
    rest = set(range(world_size)) - own - set(apart) - ended
    return Rendezvous(
        place=place,
        apart=tuple(apart[rank] for rank in sorted(apart)),
        never_seen=tuple(sorted(rest)) if local and own else (),
    )


def meeting_place(epoch: str) -> str:
    """Given a world key ("10.0.0.1:29500/4/0/id"), return its master address and port."""
    return epoch.split("/")[0]
