"""Ranks whose records move and whose processes cannot be found: /proc hides other users' processes (hidepid), or they
live in a pid namespace that we are not above. They are neither gone nor litter."""

from collections.abc import Collection

from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import Heartbeat, JobKey, ProcessEnd, RankSample
from stallwatch.sensors.environ import RankNames

REASON = "its record moves, and no such process is to be seen: /proc hides it (hidepid), or another pid namespace does"
# Containers' pids are searched for every few seconds: a rank that is merely new has been found by then.
_UNSEEN_SECONDS = 15.0


class Unseen:
    """Ranks that no source shows any more, since when."""

    def __init__(self, silent_seconds: float) -> None:
        """Who is silent for `silent_seconds` has ended, for all that can be known."""
        self._silent_ns = int(silent_seconds * 1e9)
        self._first_pulses: dict[str, int] = {}

    def is_alive(self, heartbeat: Heartbeat, now_ns: int) -> bool:
        """Given a record whose process is not found, return whether it was written long after that was first so."""
        first_ns = self._first_pulses.setdefault(heartbeat.path, heartbeat.pulse_ns)
        moved = heartbeat.pulse_ns - first_ns > _UNSEEN_SECONDS * 1e9
        return moved and not heartbeat.ended and now_ns - heartbeat.pulse_ns < self._silent_ns

    def keep(self, paths: Collection[str]) -> None:
        """Given the paths of records that are still there, forget what was noted of all others."""
        self._first_pulses = {path: pulse_ns for path, pulse_ns in self._first_pulses.items() if path in paths}


def rank_of_record(
    heartbeat: Heartbeat, names: RankNames, job: JobKey, process: str, end: ProcessEnd | None, now_ns: int
) -> RankSample:
    """A rank of which there is a record alone; `process`: why there is no more."""
    return RankSample(
        job=job,
        rank=names.rank,
        local_rank=names.local_rank,
        world_size=names.world_size,
        pid=heartbeat.pid,
        start_ticks=heartbeat.start_ticks,
        heartbeat=Known(heartbeat, now_ns),
        process=Unavailable(process, now_ns),
        end=end,
    )
