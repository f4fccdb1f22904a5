"""The ranks of this node, each as a sample: hooks' records joined with the processes that are followed."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from stallwatch.encoding import msgpack_of
from stallwatch.formats.outside_text import name_of
from stallwatch.model.process import ENDED
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import Heartbeat, JobKey, PartStatus, ProcessEnd, ProcessSample, RankSample, RanksLook
from stallwatch.node.known_ranks import KnownRanks
from stallwatch.sensors.followed import MOST_OF_USER, FollowedRank, FollowedRanks, names_of, tell_apart
from stallwatch.sensors.heartbeats import HeartbeatScan, only_user
from stallwatch.sensors.namespaces import PidTranslation
from stallwatch.sensors.rank_disks import RankDisks
from stallwatch.sensors.sensor import Options
from stallwatch.sensors.unseen import REASON, Unseen, rank_of_record

_MOST_CHILDREN_OF_USER = 4096
# Seconds of a core for the processes of one user in one read (150 µs each as a rule): their threads, files and children
# are his to have in any number. Those that come too late are looked at in the next read.
_MOST_CPU_OF_USER = 0.2
_STRIDE = 977  # a prime: whose turn is first
NO_HOOK = "no hook: add stallwatch.attach() for steps and phases"


def make(options: Options) -> "RanksSensor":
    """The sensor by its options."""
    return RanksSensor(options, known=None if options.known < 0 else KnownRanks(options.known))


class RanksSensor:
    """One child for records, processes and deaths: they need the same privilege, and the join is made where the
    facts are, so that a pid is checked before and after it is looked at."""

    def __init__(
        self,
        options: Options,
        proc: str = "/proc",
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        known: KnownRanks | None = None,
    ) -> None:
        """`known`: where captures read which processes are ranks."""
        self._known = known
        self._options = options
        self._proc = proc
        self._now_ns = monotonic_ns
        self._scan = HeartbeatScan(options.directories, only_user(options.directories))
        self._translation = PidTranslation(proc, options.discover_seconds)
        self.followed = FollowedRanks(proc, options.discover_seconds, monotonic_ns)
        self._disks = RankDisks(proc, monotonic_ns)
        self._missing_since: dict[str, int] = {}  # records of processes that were gone when we came
        self._not_believed: set[str] = set()  # of this read
        self._full = ""  # why a rank with a hook may have no record
        self._process_errors = 0
        self._children_left: dict[int, int] = {}  # of this read, by user: how many of his ranks' children are looked at
        self._spent: dict[int, float] = {}  # by this read on each user's processes, seconds of a core
        self._turn = 0
        self._unseen = Unseen(options.keep_ended_seconds)

    def wait(self, descriptor: int) -> bool:
        """Between reads: notice ends at once, and within a quarter of a second that a rank was stopped or goes on."""
        return self.followed.wait(descriptor)

    def read(self) -> RanksLook:
        """Return the node's ranks at this tick: records, processes and ends joined. What is hidden is in its parts'
        reasons."""
        began_ns = self._now_ns()
        self.followed.look_for_deaths()
        look = self._scan.read()
        self._full = look.full
        self._not_believed.clear()
        self.followed.crowds.clear()
        self._children_left.clear()
        refusals: list[str] = []
        pids = {rank.heartbeat.path: rank.key for rank in self.followed if rank.heartbeat is not None}
        for heartbeat in look.heartbeats:
            try:
                self._take(heartbeat, pids.get(heartbeat.path), began_ns)
            except Exception as error:  # noqa: BLE001 - a job chooses what is read: it costs that rank, no other
                refusals.append(name_of(f"{heartbeat.path}: {type(error).__name__}: {error}"))
        self.followed.take_slow()
        tell_apart(self.followed)
        self._drop(self.followed.with_successors())
        self._disks.look((rank.key, rank.uid) for rank in self.followed if rank.end is None)
        records_ns = self._now_ns()
        paths = {heartbeat.path for heartbeat in look.heartbeats}
        self._spent.clear()
        self._turn += 1
        samples = [self._sample(rank, paths, refusals) for rank in self._in_turn()]
        self._drop(self.followed.long_over(began_ns, self._options.keep_ended_seconds))
        crowds = self.followed.crowds
        refusals += (f"uid {uid} has more ranks than the {MOST_OF_USER} that are followed" for uid in crowds)
        done_ns = self._now_ns()
        samples += self._not_found(look.heartbeats, samples, refusals, began_ns)
        self._scan.speaking = frozenset(
            sample.heartbeat.value.path
            for sample in samples
            if sample.end is None and isinstance(sample.heartbeat, Known)
        )
        self._scan.tidy()
        samples.sort(key=lambda sample: (sample.job, sample.rank, sample.pid))
        if self._known is not None:
            self._known.note(samples)
        return RanksLook(
            tuple(samples),
            PartStatus(look.up, look.reason, (records_ns - began_ns) / 1e9, look.errors_total),
            PartStatus(
                not refusals or len(refusals) < len(samples),
                "; ".join(filter(None, (*refusals[:3], self.followed.problem(), self._disks.problem()))),
                (done_ns - records_ns) / 1e9,
                self._process_errors,
            ),
        )

    def encodable(self, look: RanksLook, problem: str) -> RanksLook:
        """Given a look that cannot be encoded as a whole, return it without what cannot be: of such a rank all that
        its job made up is unknown, and a rank whose names themselves cannot be encoded is left out."""
        now_ns = self._now_ns()
        kept, refusals = [], []
        for sample in look.ranks:
            reason = f"what was read of process {sample.pid} cannot be passed on"
            bare = msgspec.structs.replace(
                sample,
                heartbeat=Unavailable(reason, now_ns),
                process=Unavailable(reason, now_ns),
                outputs=None,
                disks=(),
            )
            fitting = next(filter(_can_be_encoded, (sample, bare)), None)
            if fitting is not None:
                kept.append(fitting)
            if fitting is not sample:
                refusals.append(reason)
        self._process_errors += len(refusals)
        told = name_of("; ".join((*refusals[:3], problem)))
        return RanksLook(
            tuple(kept),
            msgspec.structs.replace(look.heartbeats, reason=name_of(look.heartbeats.reason)),
            msgspec.structs.replace(look.processes, reason=told, errors_total=self._process_errors),
        )

    def _take(self, heartbeat: Heartbeat, known: tuple[int, int] | None, now_ns: int) -> None:
        """Take in a record; `known`: whose it was at the last read."""
        if heartbeat.is_child:
            return
        is_known = known is not None and known[1] == heartbeat.start_ticks
        pid = known[0] if known is not None and is_known else self._translation.find(heartbeat, now_ns)
        if pid is None:
            if not (heartbeat.ended or heartbeat.path in self._missing_since):
                self._missing_since[heartbeat.path] = now_ns
            return
        rank = self.followed.get(pid, heartbeat.start_ticks)
        if rank is None or rank.heartbeat is None or rank.heartbeat.path != heartbeat.path:
            rank = self._believed(heartbeat, pid, rank)
            if rank is None:
                self._not_believed.add(heartbeat.path)
                return
        self._missing_since.pop(heartbeat.path, None)
        rank.heartbeat = heartbeat
        rank.heartbeat_ns = now_ns
        if (names := names_of(heartbeat)) != rank.names:
            rank.name_itself(names)

    def _believed(self, heartbeat: Heartbeat, pid: int, known: FollowedRank | None) -> FollowedRank | None:
        """Given a record that is new to us, return the rank that it speaks for; None when it does not."""
        rank = known or self.followed.follow(pid, heartbeat.start_ticks, names_of(heartbeat))
        if rank is None:
            return None
        # A process that has become another user since keeps the record of the one it was.
        uids = rank.watch.directory.status().uids if rank.end is None else (rank.uid,)
        if heartbeat.uid not in uids:
            self._scan.reject(heartbeat, f"written by uid {heartbeat.uid}, but process {pid} runs as {uids[0]}")
            if known is None:
                self.followed.forget(rank)
            return None
        if rank.heartbeat is not None:
            if rank.heartbeat.pulse_ns > heartbeat.pulse_ns:
                return None  # it has moved on to another file
            self._not_believed.add(rank.heartbeat.path)
        return rank

    def _in_turn(self) -> list[FollowedRank]:
        """All that are followed, another one first each time."""
        ranks = list(self.followed)
        start = self._turn * _STRIDE % max(1, len(ranks))
        return [*ranks[start:], *ranks[:start]]

    def _sample(self, rank: FollowedRank, paths: set[str], refusals: list[str]) -> RankSample:
        now_ns, began = self._now_ns(), time.thread_time()
        process: Known[ProcessSample] | Unavailable
        if self._spent.get(rank.uid, 0.0) > _MOST_CPU_OF_USER and rank.end is None:
            reason = f"process {rank.watch.pid} is looked at next: the others of uid {rank.uid} take long to read"
            process = Unavailable(reason, now_ns)
        elif rank.end is None:
            try:
                left = self._children_left.setdefault(rank.uid, _MOST_CHILDREN_OF_USER)
                hookless = rank.heartbeat is None
                children = self.followed.children_of(rank)
                looked = rank.watch.sample(_training_tid(rank), left, children, with_threads=hookless)
                process = Known(looked, self._now_ns())
                self._children_left[rank.uid] = left - len(process.value.children)
                if rank.pidfd is None and process.value.state in ENDED:
                    self.followed.ended(rank, now_ns)
            except ProcessLookupError:
                # The pidfd may not have been polled yet: it tells the time, this only that it is over.
                self.followed.look_for_deaths()
                self.followed.ended(rank, now_ns)
            except Exception as error:  # noqa: BLE001 - whatever it does to its reader, it costs itself alone
                self._process_errors += 1
                refusals.append(name_of(f"process {rank.watch.pid}: {error}"))
                process = Unavailable(name_of(f"process {rank.watch.pid} cannot be read: {error}"), now_ns)
        if rank.end is not None:
            process = Unavailable(f"process {rank.watch.pid} has ended", now_ns)
        self._spent[rank.uid] = self._spent.get(rank.uid, 0.0) + time.thread_time() - began
        heartbeat: Known[Heartbeat] | Unavailable
        if rank.heartbeat is None:
            heartbeat = Unavailable(f"{NO_HOOK}; or {self._full}" if self._full else NO_HOOK, now_ns)
        elif rank.heartbeat.path in paths or rank.end is not None:
            heartbeat = Known(rank.heartbeat, rank.heartbeat_ns)
        else:
            heartbeat = Unavailable(f"{rank.heartbeat.path} was removed or can no longer be read", now_ns)
        names = rank.names
        return RankSample(
            job=rank.job,
            rank=names.rank,
            local_rank=names.local_rank,
            world_size=names.world_size,
            pid=rank.watch.pid,
            start_ticks=rank.watch.start_ticks,
            heartbeat=heartbeat,
            process=process,
            end=rank.end,
            outputs=rank.traces.outputs,
            disks=() if rank.end is not None else self._disks.of(rank.watch.pid, rank.watch.start_ticks),
        )

    def _not_found(
        self, heartbeats: tuple[Heartbeat, ...], samples: list[RankSample], refusals: list[str], now_ns: int
    ) -> Iterator[RankSample]:
        """Records of processes that are not there: hidden from us while the record moves; else ended before we could
        follow them, which is a death of the job while its other ranks live (we were restarted), and litter otherwise,
        which is removed after the grace."""
        followed = {rank.heartbeat.path for rank in self.followed if rank.heartbeat is not None}
        followed |= self._not_believed
        living = {rank.job for rank in self.followed if rank.end is None}
        began_ns = {job: min(r.began_ns for r in self.followed if r.job == job) for job in living}
        successors = {(sample.job, sample.rank) for sample in samples if sample.end is None}
        self.followed.owners.keep({*(r.uid for r in self.followed), *(beat.uid for beat in heartbeats)})
        here = {heartbeat.path for heartbeat in heartbeats}
        self._unseen.keep(here - followed)
        if len(self._missing_since) > len(here):
            knows = self._scan.knows
            self._missing_since = {path: at_ns for path, at_ns in self._missing_since.items() if knows(path)}
        for heartbeat in heartbeats:
            if heartbeat.is_child or heartbeat.path in followed:
                continue
            since_ns = self._missing_since.setdefault(heartbeat.path, now_ns)
            names = names_of(heartbeat)
            job = JobKey(names.training_job, names.epoch, self.followed.owners.name_of(heartbeat.uid))
            at_ns = heartbeat.ended_ns or max(heartbeat.pulse_ns, heartbeat.last_step_ns or 0)
            if self._unseen.is_alive(heartbeat, now_ns):
                if (job, names.rank) not in successors:
                    reason = f"process {heartbeat.pid}: {REASON}"
                    refusals.append(reason)
                    yield rank_of_record(heartbeat, names, job, reason, None, now_ns)
            elif job in living and at_ns >= began_ns[job] and (job, names.rank) not in successors:
                source: Literal["hook", "unknown"] = "hook" if heartbeat.exit_code is not None else "unknown"
                end = ProcessEnd(at_ns, heartbeat.exit_code, None, source)
                reason = f"process {heartbeat.pid} had ended before it could be looked at"
                yield rank_of_record(heartbeat, names, job, reason, end, now_ns)
            elif now_ns - since_ns > self._options.keep_ended_seconds * 1e9:
                self._scan.remove(heartbeat.path)

    def _drop(self, ranks: Iterable[FollowedRank]) -> None:
        for rank in ranks:
            if rank.heartbeat is not None:
                self._scan.remove(rank.heartbeat.path)
            self.followed.forget(rank)

    def close(self) -> None:
        """Close all that is open."""
        self._scan.close()
        self.followed.close()


def _can_be_encoded(sample: RankSample) -> bool:
    try:
        msgpack_of(sample)
    except (ValueError, OverflowError, RecursionError):
        return False
    return True


def _training_tid(rank: FollowedRank) -> int | None:
    """The thread that trains, where its number means the same here as in the process' own PID namespace."""
    beat = rank.heartbeat
    return beat.training_tid if beat is not None and beat.pid == rank.watch.pid else None
