"""What people see of the looks at each rank: how much it waits, and what it makes its peers wait."""

import msgspec

from stallwatch.detectors.looks import Looks, peers_of
from stallwatch.detectors.waiting import LEAST_LOOKS, leads, waited_share


class Shares(msgspec.Struct, frozen=True):
    """A rank's share of time in communication, and what it costs its job."""

    communication: float  # of the looks, in which it stood in a collective
    slow: float | None  # what it costs its job, as in Slowness.share; None: it has no peer on this node


def shares_of(looks: Looks, most: int) -> tuple[tuple[int, int, Shares], ...]:
    """Return (rank, pid, shares) of each member by the last looks, `most` of them; nothing where they are too few."""
    window = min(most, len(looks.looks))
    if window < LEAST_LOOKS:
        return ()
    shares = []
    for peers in peers_of(looks.members):
        columns = looks.columns_of(peers, window)
        less = leads(columns)
        for peer, (rank, column) in zip(peers, columns, strict=True):
            # Of the time as it is now; Slowness.share is of the step that there would be without it.
            slow = max(less[rank], 0.0) / (1.0 - min(less[rank], 0.99)) if rank in less else None
            shares.append((rank, peer.pid, Shares(waited_share(column), slow)))
    return tuple(shares)
