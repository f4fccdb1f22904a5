"""Ranks that others wait for and that wait in nothing, by what recorders and stacks show together."""

from stallwatch.diagnosis.frames.code_origin import Origin, place
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.waits.graph import Graph, in_transfer, may_hide_transfers
from stallwatch.diagnosis.waits.roots import Roots


def goes_on(case: Case, rank: int) -> bool:
    """True when it was seen to move, or its calls end and it stands in the next, be it at the same line."""
    activity, summary = case.activity(rank), case.summaries.get(rank)
    calls_end = case.recorded(rank) and summary is not None and bool(summary.advanced)
    return bool(activity.moving) or (calls_end and bool(activity.in_collective))


def absent_ranks(case: Case, graph: Graph, roots: Roots) -> list[int]:
    """Absent ranks; those that only a stack shows to be waiting count only where nobody else is absent."""
    stands, perhaps = set(graph.unrecorded), set(graph.perhaps)
    absent = {rank for rank, _ in roots.absent}
    if not graph.waits or stands or perhaps:
        absent |= {rank for rank in case.observed if rank not in graph.waiting and _elsewhere(case, rank)}
    # Who is gone enters nothing; that is rank_exited, or the consequence of what the living did.
    absent = {rank for rank in absent if not (_awaits_gpu(case, rank) or case.activity(rank).gone)}
    absent = {rank for rank in absent if not _may_wait_in_what_it_issued(case, graph, rank)}
    doubtful = absent - stands if graph.waits else set()
    if doubtful & perhaps and len([rank for rank in perhaps if case.recorded(rank)]) > 1:
        doubtful = set()  # each may wait for a message of another: who began it, is nowhere
    for found in (absent - stands - perhaps, doubtful):
        seen = {rank for rank in found if case.activity(rank).stack}
        if stands and seen:
            return sorted(seen)  # gloo records no transfers: without its stack a rank may stand in one
        if (stands or perhaps) and any(_may_stand_in_transfer(case, rank) for rank in found - seen):
            return sorted(seen - perhaps)  # it, or whom it waits for
        if found:
            return sorted(found)
    if graph.waits and not roots.closed:
        inside = sorted(rank for rank in absent & stands if not case.activity(rank).gpu_sync)
        # Who stands in communication waits for somebody: of several in transfers each for the next, perhaps, and one
        # alone for whoever is not seen to wait elsewhere. Who began it is nowhere. At its start a rank waits for all.
        waits = [rank for rank in inside if not case.activity(rank).in_store_or_init]
        transfers = [rank for rank in waits if in_transfer(case.activity(rank))]
        others = set(case.world) - {wait.rank for wait in graph.waits} - set(inside)
        return [] if len(transfers) > 1 or (waits and others) else inside
    return []


def _may_stand_in_transfer(case: Case, rank: int) -> bool:
    """Its dump is all that is known of it, and its back end records no transfers: others stand in some."""
    summary = case.summaries.get(rank)
    return summary is not None and may_hide_transfers(summary)


def _may_wait_in_what_it_issued(case: Case, graph: Graph, rank: int) -> bool:
    """It stands as in communication, and none of its recorders tells whether what it issued has ended."""
    if not case.recorded(rank) or not case.untold.issuperset(case.summaries[rank].backends):
        return False
    return bool(case.activity(rank).in_collective) or rank in graph.perhaps


def _elsewhere(case: Case, rank: int) -> bool:
    """Seen outside of communication: for ranks that no recorder tells of."""
    return case.is_elsewhere(rank) and not case.activity(rank).moving


def _awaits_gpu(case: Case, rank: int) -> bool:
    """Device synchronisation and nothing pending: some communication is never recorded, so nobody is accused.

    A thread that merely spins below a line of the job's own code is elsewhere, whatever it spins in.
    """
    activity = case.activity(rank)
    if not (case.recorded(rank) and activity.gpu_sync):
        return False
    return not activity.stack or place(activity.stack[0].filename).origin is not Origin.JOB
