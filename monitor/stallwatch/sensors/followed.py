"""The processes that are ranks, while the daemon follows them: who each is, how it ended, which job it is of."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec.structs import replace

from stallwatch.model.snapshot import Heartbeat, JobKey, ProcessEnd
from stallwatch.node.procfs import TICKS_PER_SECOND
from stallwatch.sensors.deaths import DeathWatch
from stallwatch.sensors.environ import RankNames
from stallwatch.sensors.exits import Traces, explain, note_traces
from stallwatch.sensors.hookless import KnownRank
from stallwatch.sensors.owners import OwnerNames
from stallwatch.sensors.processes import ProcessWatch
from stallwatch.sensors.same_named_jobs import RankClaimant, kin_of, separate_jobs
from stallwatch.sensors.slow_reads import SlowReads

# A stop must be told within two seconds, so it cannot wait for the next tick; one pread a rank.
_STATE_SECONDS = 0.25
# Of one user: no node has so many ranks, and each costs some files and 150 µs of a read.
MOST_OF_USER = 512


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
        self.names = names
        # Asked for many times a look, and the same for ever as a rule.
        self.named = _job_of(names, owner)  # the job that it says it is of
        self.job = self.named  # told apart from others of its name
        self.ordinal: int | None = None  # which of these it is of, from 1 on; None: not told apart

    @property
    def key(self) -> tuple[int, int]:
        """(pid, start ticks): the process, also once its pid is another's."""
        return self.watch.pid, self.watch.start_ticks

    def name_itself(self, names: RankNames) -> None:
        """Take in whose rank it says it is."""
        self.names, named = names, _job_of(names, self.owner)
        if named != self.named:
            self.named = self.job = named
            self.ordinal = None

    def tell_apart(self, ordinal: int) -> None:
        """Say which of the jobs of its name it is of."""
        if ordinal != self.ordinal:
            self.ordinal = ordinal
            self.job = self.named if ordinal == 1 else replace(self.named, epoch=f"{self.named.epoch} ({ordinal})")

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
        """Close what is held of its process, if that was not done before."""
        self.watch.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class FollowedRanks:
    """All that are followed, each from when it is found to some time after its end."""

    def __init__(self, proc: str, discover_seconds: float, monotonic_ns: Callable[[], int]) -> None:
        self._proc = proc
        self._now_ns = monotonic_ns
        self._slow = SlowReads(proc, discover_seconds, monotonic_ns)
        self._deaths = DeathWatch(monotonic_ns)
        self._ranks: dict[tuple[int, int], FollowedRank] = {}  # by pid and start ticks
        self.owners = OwnerNames()
        self.crowds: set[int] = set()  # users with more ranks than are followed

    def __iter__(self) -> Iterator[FollowedRank]:
        return iter(self._ranks.values())

    def get(self, pid: int, start_ticks: int) -> FollowedRank | None:
        """The rank of that process; None."""
        return self._ranks.get((pid, start_ticks))

    def wait(self, descriptor: int) -> bool:
        """Return True as soon as `descriptor` can be read, False when a rank has ended, was stopped or goes on."""
        while True:
            asked, ended = self._deaths.wait(descriptor, _STATE_SECONDS if self._ranks else None)
            if asked:
                return True
            if ended or any(tuple(rank.changed() for rank in self)):
                return False

    def look_for_deaths(self) -> None:
        """Have ranks note their ends that have not yet."""
        self._deaths.look()

    def follow(self, pid: int, start_ticks: int, names: RankNames) -> FollowedRank | None:
        """Begin to follow a process; None when it is gone or another one by now, or one too many of its user's."""
        try:
            watch = ProcessWatch(pid, self._proc)
        except (ProcessLookupError, ValueError):
            return None
        if watch.start_ticks != start_ticks:
            watch.close()
            return None
        uid = watch.directory.status().uids[0]
        if sum(rank.uid == uid for rank in self) >= MOST_OF_USER:
            watch.close()
            self.crowds.add(uid)
            return None
        parent, began_ns = watch.directory.stat().parent_pid, self._now_ns() - age_ns(start_ticks)
        traces = note_traces(watch)
        rank = FollowedRank(names, uid, self.owners.name_of(uid), watch, traces, parent, began_ns, self._proc)
        self._slow.want(pid, start_ticks)
        try:
            if self._proc == "/proc":
                rank.pidfd = self._deaths.watch(pid, partial(self.ended, rank))
            # After the pidfd: now both are certain to be the process whose start ticks were read.
            watch.directory.stat()
        except ProcessLookupError:
            self.ended(rank, self._now_ns())
        self._ranks[rank.key] = rank
        return rank

    def ended(self, rank: FollowedRank, at_ns: int) -> None:
        """Have it note its end, and close what was held of its process, of which nothing is read any more: it stays for
        minutes, and a job that is started all the time has hundreds of such ranks."""
        rank.ended(at_ns)
        self._let_go(rank)

    def _let_go(self, rank: FollowedRank) -> None:
        if rank.pidfd is not None:
            self._deaths.forget(rank.pidfd)
        rank.close()

    def take_slow(self) -> None:
        """Take what the slow reads have brought since the last time, ranks without a hook among it."""
        for rank in self:
            facts = self._slow.take(*rank.key)
            if facts is not None:
                rank.watch.command = facts.command
                rank.traces = rank.traces._replace(error_file=facts.environment.get("TORCHELASTIC_ERROR_FILE", ""))
        self._slow.keep(self._ranks)
        for key in self._slow.beside():
            beside = self._ranks.get(key)
            if beside is not None and beside.heartbeat is None and beside.end is None:
                self.forget(beside)
        for found in self._slow.found():
            if (found.pid, found.start_ticks) not in self._ranks:
                self.follow(found.pid, found.start_ticks, found.names)
        self._slow.known = {
            pid: KnownRank(rank.names, rank.heartbeat is not None) for (pid, _), rank in self._ranks.items()
        }

    def children_of(self, rank: FollowedRank) -> tuple[int, ...] | None:
        """Its children, whichever thread has started them, of the last seconds; None where nobody has looked."""
        return self._slow.children_of(rank.watch.pid)

    def problem(self) -> str:
        """A sentence when something of them cannot be read; "" otherwise."""
        return self._slow.problem()

    def with_successors(self) -> list[FollowedRank]:
        """Those that ended before their successor began, which is no death of the job that runs now: somebody started
        the job again under the same address, or that rank alone."""
        living = [rank for rank in self if rank.end is None]
        began_ns = {job: min(rank.began_ns for rank in living if rank.job == job) for job in {r.job for r in living}}
        successors = {(rank.job, rank.names.rank) for rank in living}
        return [
            rank
            for rank in self
            if rank.end is not None
            and rank.job in began_ns
            and (rank.end.at_ns < began_ns[rank.job] or (rank.job, rank.names.rank) in successors)
        ]

    def long_over(self, now_ns: int, seconds: float) -> list[FollowedRank]:
        """Those that ended `seconds` ago; such a rank stays for as long as others of its job live: they may hang
        because of it."""
        living = {rank.job for rank in self if rank.end is None}
        return [
            rank
            for rank in self
            if rank.end is not None and rank.job not in living and now_ns - rank.end.at_ns > seconds * 1e9
        ]

    def forget(self, rank: FollowedRank) -> None:
        """Follow a rank no more."""
        del self._ranks[rank.key]
        self._slow.take(*rank.key)
        self._let_go(rank)

    def close(self) -> None:
        """Follow nobody any more."""
        for rank in list(self):
            self.forget(rank)


def _job_of(names: RankNames, owner: str) -> JobKey:
    return JobKey(names.training_job, names.epoch, owner)


def age_ns(start_ticks: int) -> int:
    """How long ago a process began, by the clock that also runs while the node sleeps."""
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - start_ticks * 1_000_000_000 // TICKS_PER_SECOND
    return max(age_ns, 0)


def names_of(heartbeat: Heartbeat) -> RankNames:
    """Whose rank a record is of."""
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
            RankClaimant(number, rank.names.rank, rank.began_ns, rank.kin, rank.end is None, rank.ordinal)
            for number, rank in enumerate(ranks)
        ]
        for number, ordinal in separate_jobs(members).items():
            assert isinstance(number, int)
            ranks[number].tell_apart(ordinal)
