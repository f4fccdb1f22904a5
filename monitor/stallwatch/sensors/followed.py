"""A rank's process while the daemon follows it: who it says it is, how it ended, and which job it is of."""

import os
import time
from collections.abc import Iterable

from msgspec.structs import replace

from stallwatch.model.snapshot import Heartbeat, JobKey, ProcessEnd
from stallwatch.sensors.environ import RankNames
from stallwatch.sensors.exits import Traces, explain
from stallwatch.sensors.processes import ProcessWatch
from stallwatch.sensors.twins import Member, kin_of, told_apart

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class FollowedRank:
    """One process that is a rank, followed until some time after its end."""

    def __init__(
        self,
        names: RankNames,
        uid: int,
        owner: str,
        watch: ProcessWatch,
        traces: Traces,
        parent: int,
        began_ns: int,
        proc: str,
    ) -> None:
        self.names = names
        self.uid = uid
        self.owner = owner
        self.watch = watch
        self.traces = traces
        self.began_ns = began_ns
        self.pidfd: int | None = None
        self.heartbeat: Heartbeat | None = None  # the last one that was read
        self.heartbeat_ns = 0
        self.end: ProcessEnd | None = None
        self.stopped = False
        self.kin = kin_of(watch.pid, parent, proc)
        self._twin: tuple[JobKey, int] | None = None  # which of the jobs of its name it is of

    @property
    def named(self) -> JobKey:
        """The job that it says it is of."""
        return JobKey(self.names.training_job, self.names.epoch, self.owner)

    @property
    def job(self) -> JobKey:
        named, ordinal = self.named, self.ordinal
        return named if ordinal in (None, 1) else replace(named, epoch=f"{named.epoch} ({ordinal})")

    @property
    def ordinal(self) -> int | None:
        return self._twin[1] if self._twin is not None and self._twin[0] == self.named else None

    @ordinal.setter
    def ordinal(self, ordinal: int) -> None:
        self._twin = (self.named, ordinal)

    def ended(self, at_ns: int) -> None:
        """Called the moment the process ends: a zombie's status can be read only until its parent looks."""
        if self.end is None:
            self.end = explain(self.watch, self.pidfd, self.traces, self.heartbeat, at_ns)

    def changed(self) -> bool:
        """Whether it was stopped, or goes on, since the last call."""
        if self.end is not None:
            return False
        try:
            stopped = self.watch.directory.is_stopped()
        except (OSError, ValueError):
            return False  # gone or not ours to read: the next read says so
        before, self.stopped = self.stopped, stopped
        return stopped != before

    def close(self) -> None:
        self.watch.close()
        if self.pidfd is not None:
            os.close(self.pidfd)


def age_ns(start_ticks: int) -> int:
    """How long ago a process began, by the clock that also runs while the node sleeps."""
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - start_ticks * 1_000_000_000 // _TICKS_PER_SECOND
    return max(age_ns, 0)


def names_of(heartbeat: Heartbeat) -> RankNames:
    return RankNames(
        heartbeat.rank, heartbeat.local_rank, heartbeat.world_size, heartbeat.training_job, heartbeat.epoch
    )


def tell_apart(followed: Iterable[FollowedRank]) -> None:
    """Two live processes of one rank are two jobs, whatever they call themselves."""
    by_name: dict[JobKey, list[FollowedRank]] = {}
    for rank in followed:
        by_name.setdefault(rank.named, []).append(rank)
    for ranks in by_name.values():
        members = [
            Member(number, rank.names.rank, rank.began_ns, rank.kin, rank.end is None, rank.ordinal)
            for number, rank in enumerate(ranks)
        ]
        for number, ordinal in told_apart(members).items():
            assert isinstance(number, int)
            ranks[number].ordinal = ordinal
