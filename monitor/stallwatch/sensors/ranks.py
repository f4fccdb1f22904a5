"""The ranks of this node: hooks' records joined with their processes and their ends, and ranks without a hook."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from stallwatch.formats.outside_text import name_of
from stallwatch.model.reading import Known, Unavailable
from stallwatch.model.snapshot import Heartbeat, JobKey, PartStatus, ProcessEnd, ProcessSample, RankSample, RanksLook
from stallwatch.node.known_ranks import KnownRanks
from stallwatch.sensors.deaths import DeathWatch
from stallwatch.sensors.environ import RankNames
from stallwatch.sensors.exits import note_traces
from stallwatch.sensors.followed import FollowedRank, age_ns, names_of, tell_apart
from stallwatch.sensors.heartbeats import HeartbeatScan
from stallwatch.sensors.namespaces import PidTranslation
from stallwatch.sensors.owners import Owners
from stallwatch.sensors.processes import ProcessWatch
from stallwatch.sensors.rank_disks import RankDisks
from stallwatch.sensors.sensor import Options
from stallwatch.sensors.slow_reads import SlowReads
from stallwatch.sensors.unseen import REASON, Unseen, rank_of_record

# A stop must be told within two seconds, so it cannot wait for the next tick; one pread a rank.
_STATE_SECONDS = 0.25
# Of one user: no node has so many ranks, and each costs some files and 150 µs of a read.
_MOST_OF_USER = 512
_MOST_CHILDREN_OF_USER = 4096
# Seconds of a core for the processes of one user in one read (150 µs each as a rule): their threads, files and children
# are his to have in any number. Those that come too late are looked at in the next read.
_MOST_CPU_OF_USER = 0.2
_STRIDE = 977  # a prime: whose turn is first
NO_HOOK = "no hook: add stallwatch.attach() for steps and phases"


def make(options: Options) -> "RanksSensor":
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
        self._scan = HeartbeatScan(options.directories)
        self._translation = PidTranslation(proc, options.discover_seconds)
        self._slow = SlowReads(proc, options.discover_seconds, monotonic_ns)
        self._disks = RankDisks(proc, monotonic_ns)
        self._deaths = DeathWatch(monotonic_ns)
        self._ranks: dict[tuple[int, int], FollowedRank] = {}  # by pid and start ticks
        self._missing_since: dict[str, int] = {}  # records of processes that were gone when we came
        self._not_believed: set[str] = set()  # of this read
        self._owners = Owners()
        self._full = ""  # why a rank with a hook may have no record
        self._process_errors = 0
        self._crowds: set[int] = set()  # users with more ranks than are followed
        self._children_left: dict[int, int] = {}  # of this read, by user: how many of his ranks' children are looked at
        self._spent: dict[int, float] = {}  # by this read on each user's processes, seconds of a core
        self._turn = 0
        self._unseen = Unseen(options.keep_ended_seconds)

    def wait(self, descriptor: int) -> bool:
        """Between reads: notice ends at once, and within a quarter of a second that a rank was stopped or goes on."""
        while True:
            asked, ended = self._deaths.wait(descriptor, _STATE_SECONDS if self._ranks else None)
            if asked:
                return True
            if ended or any(tuple(rank.changed() for rank in self._ranks.values())):
                return False

    def read(self) -> RanksLook:
        began_ns = self._now_ns()
        self._deaths.look()
        look = self._scan.read()
        self._full = look.full
        self._not_believed.clear()
        self._crowds.clear()
        self._children_left.clear()
        refusals: list[str] = []
        pids = {rank.heartbeat.path: key for key, rank in self._ranks.items() if rank.heartbeat is not None}
        for heartbeat in look.heartbeats:
            with _one_ranks_fault(heartbeat.path, refusals):
                self._take(heartbeat, pids.get(heartbeat.path), began_ns)
        self._take_slow()
        tell_apart(self._ranks.values())
        self._drop_followed()
        self._disks.look((key, rank.uid) for key, rank in self._ranks.items() if rank.end is None)
        records_ns = self._now_ns()
        paths = {heartbeat.path for heartbeat in look.heartbeats}
        self._spent.clear()
        self._turn += 1
        samples = [self._sample(rank, paths, refusals) for rank in self._in_turn()]
        self._drop_ended(began_ns)
        refusals += (f"uid {uid} has more ranks than the {_MOST_OF_USER} that are followed" for uid in self._crowds)
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
                "; ".join(filter(None, (*refusals[:3], self._slow.problem(), self._disks.problem()))),
                (done_ns - records_ns) / 1e9,
                self._process_errors,
            ),
        )

    def followed(self) -> tuple[FollowedRank, ...]:
        return tuple(self._ranks.values())

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
        rank = self._ranks.get((pid, heartbeat.start_ticks))
        if rank is None or rank.heartbeat is None or rank.heartbeat.path != heartbeat.path:
            rank = self._believed(heartbeat, pid, rank)
            if rank is None:
                self._not_believed.add(heartbeat.path)
                return
        self._missing_since.pop(heartbeat.path, None)
        rank.heartbeat = heartbeat
        rank.heartbeat_ns = now_ns
        rank.names = names_of(heartbeat)

    def _believed(self, heartbeat: Heartbeat, pid: int, known: FollowedRank | None) -> FollowedRank | None:
        """Given a record that is new to us, return the rank that it speaks for; None when it does not."""
        rank = self._follow(pid, heartbeat.start_ticks, names_of(heartbeat), known)
        if rank is None:
            return None
        # A process that has become another user since keeps the record of the one it was.
        uids = rank.watch.directory.status().uids if rank.end is None else (rank.uid,)
        if heartbeat.uid not in uids:
            self._scan.reject(heartbeat, f"written by uid {heartbeat.uid}, but process {pid} runs as {uids[0]}")
            if known is None:
                self._forget((pid, heartbeat.start_ticks))
            return None
        if rank.heartbeat is not None:
            if rank.heartbeat.pulse_ns > heartbeat.pulse_ns:
                return None  # it has moved on to another file
            self._not_believed.add(rank.heartbeat.path)
        return rank

    def _follow(self, pid: int, start_ticks: int, names: RankNames, known: FollowedRank | None) -> FollowedRank | None:
        """Begin to follow a process; None when it is gone or another one by now."""
        if known is not None:
            return known
        try:
            watch = ProcessWatch(pid, self._proc)
        except (ProcessLookupError, ValueError):
            return None
        if watch.start_ticks != start_ticks:
            watch.close()
            return None
        uid = watch.directory.status().uids[0]
        if sum(rank.uid == uid for rank in self._ranks.values()) >= _MOST_OF_USER:
            watch.close()
            self._crowds.add(uid)
            return None
        parent, began_ns = watch.directory.stat().parent_pid, self._now_ns() - age_ns(start_ticks)
        traces = note_traces(watch)
        rank = FollowedRank(names, uid, self._owners.name_of(uid), watch, traces, parent, began_ns, self._proc)
        self._slow.want(pid, start_ticks)
        try:
            if self._proc == "/proc":
                rank.pidfd = self._deaths.watch(pid, rank.ended)
            # After the pidfd: now both are certain to be the process whose start ticks were read.
            watch.directory.stat()
        except ProcessLookupError:
            rank.ended(self._now_ns())
        self._ranks[pid, start_ticks] = rank
        return rank

    def _drop_followed(self) -> None:
        """A rank that ended before its successor began is no death of the job that runs now: somebody started the job
        again under the same address, or that rank alone."""
        living = [rank for rank in self._ranks.values() if rank.end is None]
        began_ns = {job: min(rank.began_ns for rank in living if rank.job == job) for job in {r.job for r in living}}
        successors = {(rank.job, rank.names.rank) for rank in living}
        for key, rank in list(self._ranks.items()):
            if rank.end is None or rank.job not in began_ns:
                continue
            if rank.end.at_ns < began_ns[rank.job] or (rank.job, rank.names.rank) in successors:
                if rank.heartbeat is not None:
                    self._scan.remove(rank.heartbeat.path)
                self._forget(key)

    def _take_slow(self) -> None:
        """Take what the slow reads have brought since the last read."""
        for (pid, start_ticks), rank in self._ranks.items():
            facts = self._slow.take(pid, start_ticks)
            if facts is not None:
                rank.watch.command = facts.command
                error_file = facts.environment.get("TORCHELASTIC_ERROR_FILE", "")
                rank.traces = rank.traces._replace(error_file=error_file)
        self._slow.keep(self._ranks)
        for found in self._slow.found():
            if (found.pid, found.start_ticks) not in self._ranks:
                self._follow(found.pid, found.start_ticks, found.names, None)
        self._slow.known_pids = frozenset(pid for pid, _ in self._ranks)

    def _in_turn(self) -> list[FollowedRank]:
        """All that are followed, another one first each time."""
        ranks = list(self._ranks.values())
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
                process = Known(rank.watch.sample(_training_tid(rank), left), self._now_ns())
                self._children_left[rank.uid] = left - len(process.value.children)
                if rank.pidfd is None and process.value.state in "ZX":
                    rank.ended(now_ns)
            except ProcessLookupError:
                # The pidfd may not have been polled yet: it tells the time, this only that it is over.
                self._deaths.look()
                rank.ended(now_ns)
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
        followed = {rank.heartbeat.path for rank in self._ranks.values() if rank.heartbeat is not None}
        followed |= self._not_believed
        living = {rank.job for rank in self._ranks.values() if rank.end is None}
        began_ns = {job: min(r.began_ns for r in self._ranks.values() if r.job == job) for job in living}
        successors = {(sample.job, sample.rank) for sample in samples if sample.end is None}
        self._owners.keep({*(r.uid for r in self._ranks.values()), *(beat.uid for beat in heartbeats)})
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
            job = JobKey(names.training_job, names.epoch, self._owners.name_of(heartbeat.uid))
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

    def _drop_ended(self, now_ns: int) -> None:
        """A rank that ended stays for as long as others of its job live: they may hang because of it."""
        limit_ns = self._options.keep_ended_seconds * 1e9
        living = {rank.job for rank in self._ranks.values() if rank.end is None}
        for key, rank in list(self._ranks.items()):
            if rank.job in living or rank.end is None:
                continue
            if now_ns - rank.end.at_ns > limit_ns:
                if rank.heartbeat is not None:
                    self._scan.remove(rank.heartbeat.path)
                self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        rank = self._ranks.pop(key)
        self._slow.take(*key)
        if rank.pidfd is not None:
            self._deaths.forget(rank.pidfd)
        rank.close()

    def close(self) -> None:
        self._scan.close()
        for key in list(self._ranks):
            self._forget(key)


@contextlib.contextmanager
def _one_ranks_fault(whose: str, refusals: list[str]) -> Iterator[None]:
    """What one rank's files and process do to their reader, whatever it is, costs that rank."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a job chooses what is read; the others' ranks are read all the same
        refusals.append(name_of(f"{whose}: {type(error).__name__}: {error}"))


def _can_be_encoded(sample: RankSample) -> bool:
    try:
        msgspec.msgpack.encode(sample)
    except (ValueError, OverflowError, RecursionError):
        return False
    return True


def _training_tid(rank: FollowedRank) -> int | None:
    """The thread that trains, where its number means the same here as in the process' own PID namespace."""
    beat = rank.heartbeat
    return beat.training_tid if beat is not None and beat.pid == rank.watch.pid else None
