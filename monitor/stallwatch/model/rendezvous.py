"""Where the ranks of a job were told to meet, as far as their node saw."""

import msgspec


class Apart(msgspec.Struct, frozen=True):
    """A rank of the same job on this node that was told another meeting place."""

    rank: int
    place: str  # master address and port


class Rendezvous(msgspec.Struct, frozen=True):
    """Where ranks of a job meet, who meets elsewhere, and who was never seen."""

    place: str = ""  # of the ranks of the incident: master address and port; "" when unknown
    apart: tuple[Apart, ...] = ()
    never_seen: tuple[int, ...] = ()  # ranks that can only be on this node and have no process here


NO_MEETING = Rendezvous()
