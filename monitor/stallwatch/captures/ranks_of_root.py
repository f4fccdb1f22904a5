"""Ranks of root are not looked into by a service that is not root: what it could be made to read and to pause would be
the node's own. Their hooks may still tell of them."""

import os

from stallwatch.model.snapshot import RankSample
from stallwatch.node.procfs import ProcessDirectory

_SENTENCE = (
    "rank {rank} runs as root, and is not looked into: run it as another user, or set capture.ranks_of_root where who "
    "is root in a container is nobody outside"
)


def refusal(sample: RankSample, allowed: bool) -> str:
    """Why this rank is not looked into; "" when it may be."""
    if allowed or os.geteuid() == 0 or 0 not in _users(sample):
        return ""
    return _SENTENCE.format(rank=sample.rank)


def _users(sample: RankSample) -> tuple[int, ...]:
    """As the kernel says now; of a process that is gone, as the privileged side noted it while it lived."""
    if sample.end is None:
        try:
            with ProcessDirectory(sample.pid) as directory:
                if directory.stat().start_ticks == sample.start_ticks:
                    return directory.status().uids
        except (OSError, ValueError):
            pass
    return () if sample.outputs is None else (sample.outputs.uid,)
