"""When a job was first suspected: the second look is counted from there."""

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.model.finding import Stage
from stallwatch.model.snapshot import JobKey


class Suspicion(msgspec.Struct, frozen=True):
    """A job that is suspect, since when."""

    job: JobKey
    since_ns: int
    whole: bool = False  # of all of its ranks that could be seen then


def due_of(suspicion: Suspicion, second_look_seconds: float) -> int:
    """Return when a suspicion that lasts is confirmed."""
    return suspicion.since_ns + int(second_look_seconds * SECOND_NS)


def stage_of(suspicion: Suspicion, second_look_seconds: float, at_ns: int) -> Stage:
    """Whether it is time for the second look."""
    # Ticks jitter by milliseconds: not one whole tick later for those.
    old_enough = (at_ns - suspicion.since_ns) / SECOND_NS + 0.1 >= second_look_seconds
    return "confirmed" if old_enough else "suspect"
