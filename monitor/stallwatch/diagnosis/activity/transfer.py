"""A Work.wait that the recorder explains: gloo records every collective and no transfer, so a wait for communication
with nothing unfinished in the recorder is a wait for a send or a receive."""

import msgspec

from stallwatch.diagnosis.activity.rank_activity import Activity
from stallwatch.model.summary import RankSummary

UNNAMED_TRANSFER = "p2p"


def with_transfer(activity: Activity, summary: RankSummary) -> Activity:
    """Given what a rank does and what its recorders say, name the wait where only both together tell."""
    waits = bool(activity.in_collective) and not activity.collective and not activity.in_store_or_init
    if not waits or summary.backends != ("gloo",) or not summary.streams or summary.pending:
        return activity
    if activity.detail and activity.detail != "waits for a collective":
        return activity  # a pipeline stage, the backward pass: the stack has said more already
    return msgspec.structs.replace(activity, collective=UNNAMED_TRANSFER, detail="waits for a send or receive")
