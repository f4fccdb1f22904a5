"""Finds ranks that have no hook: the topmost process that names a rank and has torch in it.

A service that a rank or a person has started (a tracker's, a server of batches, a program that is tried in a shell of
the same container) may have its variables and torch, and nothing of the rank above it. Where another process of these
names takes part in the job (it has a hook, or threads of a process group) and this one does not, it is none of it.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from stallwatch.model.launchers import LAUNCHERS, MODULES
from stallwatch.model.process import ENDED
from stallwatch.node.procfs import ENVIRONMENT_LIMIT_BYTES, ProcessDirectory, Stat, parse_stat, stat_of, status_of
from stallwatch.sensors.environ import RankNames, is_disabled, parse_environment, rank_names

_MAPS_LIMIT_BYTES = 8 << 20
# A process imports torch some seconds after it starts, or never: its maps are not read for ever.
_TORCH_READS = 120
# A hook attaches after torch was imported: only who has had the time and has none is a rank without one.
_TORCH_SEEN = 3
# Between fork and exec a process still shows its parent's environment: nameless ones are read again a few times.
_ENVIRONMENT_READS = 3
# What is known to be no rank is looked at again only every so many searches, a part of them each time: its pid may have
# been used again. A node has thousands of processes, most of them the kernel's.
_SETTLED_EVERY = 12
_ARGUMENTS_LIMIT_BYTES = 4096
# Programs that start ranks, have torch loaded and, under srun or mpirun, variables of a rank of their own.
_LAUNCHER_PROGRAMS = frozenset(program for one in LAUNCHERS if one.in_python for program in one.programs)


# Of each user in one search: who has many processes, large environments or many maps waits, and nobody else does.
_MOST_READS = 128
_MOST_READ_BYTES = 16 << 20
_MOST_NAMED = 1_024
_ADDR_NO_RANDOMIZE = 0x0040000  # personality(2)
_MOST_ANCESTORS = 64  # of one process: a chain is as long as its user likes


# Threads of torch's that there are where a process group is, by its back end.
_OF_PROCESS_GROUPS = (b"pt_gloo", b"pt_nccl", b"pt_mpi", b"pt_ucc")
_MOST_THREADS = 1_024  # of one process that are asked

Numbers = tuple[int, int, int]  # rank, local rank, world size


class KnownRank(NamedTuple):
    """A process that is followed as a rank."""

    names: RankNames
    has_hook: bool = False


class FoundRank(NamedTuple):
    """A process that is a rank, without a hook."""

    pid: int
    start_ticks: int
    names: RankNames


class _Seen:
    """What is known of one process."""

    def __init__(self, pid: int, uid: int, start_ticks: int, parent_pid: int) -> None:
        self.pid = pid
        self.uid = uid
        self.start_ticks = start_ticks
        self.parent_pid = parent_pid
        self.leaders: frozenset[int] = frozenset()  # others, who began its process group and its session
        self.stack_start = 0
        self.names: RankNames | None = None
        self.environment_reads = 0
        self.torch_reads = 0
        self.torch_seen = 0
        self.has_rank = False  # RANK itself, not a scheduler's name for it
        self.is_launcher: bool | None = None  # None: not looked at
        self.memory = f"{pid}"  # below /proc; another thread's folder where the main thread has ended alone
        self.is_below = False  # of a rank: for good, also when that has gone and init has adopted it
        self.has_process_group = False
        self.is_beside = False  # another process is that rank: for good, unless it takes part after all

    @property
    def is_settled(self) -> bool:
        return self.names is None and self.environment_reads >= _ENVIRONMENT_READS


class HooklessSearch:
    """Remembers from search to search what every process of the node is."""

    def __init__(self, proc: str = "/proc", without: Collection[int] = ()) -> None:
        """`without`: processes that are not looked at."""
        self._proc = proc
        self._without = without
        self.reading = 0  # the process whose memory is read now, and may not be had; for other threads
        self.beside: frozenset[tuple[int, int]] = frozenset()  # of those followed: who is none, by pid and start ticks
        self._seen: dict[int, _Seen] = {}
        self._stacks: dict[int, tuple[int, int]] = {}  # of known ranks by pid, ended ones too: start ticks, stack_start
        self._searches = 0
        self._reads: Counter[int] = Counter()  # of this search, by user
        self._read_bytes: Counter[int] = Counter()

    def search(self, followed: Mapping[int, KnownRank]) -> list[FoundRank]:
        """Return ranks that are not among those `followed`, by pid, and neither below nor beside a process of the same
        rank; `beside` then has what else is no rank."""
        known = {pid: numbers_of(rank.names) for pid, rank in followed.items()}
        self._searches += 1
        self._reads.clear()
        self._read_bytes.clear()
        pids = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}.difference(self._without)
        for pid in self._seen.keys() - pids:
            del self._seen[pid]
        for pid in pids:
            self._look_at(pid)
        first = {pid: (seen.start_ticks, seen.stack_start) for pid in known if (seen := self._seen.get(pid))}
        self._stacks = {pid: stack for pid, stack in (first | self._stacks).items() if pid in known}
        named, of_user = {}, Counter[int]()
        for pid, seen in self._seen.items():
            if seen.names is not None and of_user[seen.uid] < _MOST_NAMED:
                of_user[seen.uid] += 1
                named[pid] = seen
        for seen in named.values():
            self._find_launchers(seen)
        for seen in sorted(named.values(), key=lambda seen: sum(1 for _ in self._ancestors(seen))):
            seen.is_below = (
                seen.is_below or self._has_ancestor(seen, known) or self._was_forked_by_its_rank(seen, known)
            )
            if not seen.is_below and seen.pid not in known:
                self._look_for_torch(seen)
        found = [
            FoundRank(pid, seen.start_ticks, seen.names)
            for pid, seen in named.items()
            if seen.names is not None and pid not in known and not seen.is_below
            and seen.torch_seen >= _TORCH_SEEN and not self._launches(pid, seen)
        ]  # fmt: skip
        self._part(found, followed)
        self.beside = frozenset((pid, self._seen[pid].start_ticks) for pid in followed if self._is_beside(pid))
        return [rank for rank in found if not self._is_beside(rank.pid)]

    def children(self, of: Collection[int]) -> dict[int, tuple[int, ...]]:
        """Given pids, return the children of each as the last search met them, whichever thread has started them."""
        found: dict[int, list[int]] = {pid: [] for pid in of}
        for pid, seen in self._seen.items():
            if seen.parent_pid in found:
                found[seen.parent_pid].append(pid)
        return {pid: tuple(children) for pid, children in found.items()}

    def _part(self, found: Sequence[FoundRank], followed: Mapping[int, KnownRank]) -> None:
        """Part those that are a rank from what merely has its names."""
        by_names: dict[RankNames, list[_Seen]] = {}
        for pid, names in (*((rank.pid, rank.names) for rank in found), *((p, r.names) for p, r in followed.items())):
            if (seen := self._seen.get(pid)) is not None:
                by_names.setdefault(names, []).append(seen)
        for several in by_names.values():
            if len(several) > 1 or several[0].is_beside:
                hooked = {one.pid for one in several if one.pid in followed and followed[one.pid].has_hook}
                taking_part = [one for one in several if one.pid in hooked or self._has_process_group(one)]
                for one in several:
                    one.is_beside = one not in taking_part and (one.is_beside or bool(taking_part))

    def _is_beside(self, pid: int) -> bool:
        seen = self._seen.get(pid)
        return seen is not None and seen.is_beside

    def _has_process_group(self, seen: _Seen) -> bool:
        """Whether it has one, or had one once: by the names of its threads, which torch gives them since 2.5."""
        if not seen.has_process_group:
            self._reads[seen.uid] += 1
            folder = f"{self._proc}/{seen.pid}/task"
            with contextlib.suppress(OSError):
                tids = os.listdir(folder)[:_MOST_THREADS]
                seen.has_process_group = any(_name_of(f"{folder}/{tid}").startswith(_OF_PROCESS_GROUPS) for tid in tids)
        return seen.has_process_group

    def _look_at(self, pid: int) -> None:
        seen = self._seen.get(pid)
        if seen is not None and seen.is_settled and (self._searches + pid) % _SETTLED_EVERY:
            return
        try:
            stat = stat_of(pid, self._proc)
            if seen is None or seen.start_ticks != stat.start_ticks:
                seen = self._seen[pid] = _Seen(pid, self._user_of(pid), stat.start_ticks, stat.parent_pid)
        except (OSError, ValueError):
            self._seen.pop(pid, None)
            return
        seen.parent_pid = stat.parent_pid
        seen.stack_start = stat.stack_start
        seen.leaders = frozenset((stat.process_group, stat.session)) - {pid}
        if seen.names is None and not seen.is_settled and self._may_read(seen.uid):
            seen.environment_reads += 1
            if stat.state in ENDED and stat.threads > 1:
                stat = self._by_another_thread(seen, stat)
            # A kernel thread has no pages and no environment.
            seen.names = self._names(pid) if stat.resident_pages else None

    def _by_another_thread(self, seen: _Seen, stat: Stat) -> Stat:
        with contextlib.suppress(OSError, ValueError), ProcessDirectory(seen.pid, self._proc) as directory:
            seen.memory = f"{seen.pid}/task/{directory.living_thread()}"
            return parse_stat(directory.read(seen.memory.partition("/")[2] + "/stat"))
        return stat

    def _names(self, pid: int) -> RankNames | None:
        try:
            data = self._read(self._seen[pid], "environ", ENVIRONMENT_LIMIT_BYTES)
        except OSError:
            return None
        environment = parse_environment(data)
        self._seen[pid].has_rank = "RANK" in environment
        return None if is_disabled(environment) else rank_names(environment, lambda: self._arguments(pid))

    def _user_of(self, pid: int) -> int:
        """By its status: whose the folder is a process may change (PR_SET_DUMPABLE). Raise OSError or ValueError."""
        return status_of(pid, self._proc).uids[0]

    def _may_read(self, uid: int) -> bool:
        return self._reads[uid] < _MOST_READS and self._read_bytes[uid] < _MOST_READ_BYTES

    def _read(self, seen: _Seen, name: str, limit_bytes: int) -> bytes:
        self._reads[seen.uid] += 1
        self.reading = seen.pid
        try:
            with open(f"{self._proc}/{seen.memory}/{name}", "rb") as file:
                data = file.read(limit_bytes)
        finally:
            self.reading = 0
        self._read_bytes[seen.uid] += len(data)
        return data

    def _ancestors(self, seen: _Seen) -> Iterator[_Seen]:
        visited: set[int] = set()
        parent_pid = seen.parent_pid
        while (parent := self._seen.get(parent_pid)) is not None and parent_pid not in visited:
            if len(visited) >= _MOST_ANCESTORS:
                return
            yield parent
            visited.add(parent_pid)
            parent_pid = parent.parent_pid

    def _find_launchers(self, seen: _Seen) -> None:
        """What has a scheduler's variables alone and a rank of other numbers below itself has started that rank."""
        if seen.has_rank:
            for above in self._ancestors(seen):
                if above.names and not above.has_rank and _numbers(above) != _numbers(seen):
                    above.is_launcher = True

    def _has_ancestor(self, seen: _Seen, known: Mapping[int, Numbers]) -> bool:
        """Loader workers, compilers and trackers inherit the variables of their rank, and those that it set itself. A
        shell or a profiler that the rank was started by has them too, and no torch. A rank that has set all of them
        itself (mp.spawn, Ray) shows none."""
        return any(
            above.names is None and known.get(above.pid) == _numbers(seen) for above in self._ancestors(seen)
        ) or any(
            above.names is not None and not above.is_launcher and (above.torch_seen or above.pid in known)
            and (above.names == seen.names or (not above.has_rank and _numbers(above) == _numbers(seen)))
            for above in self._ancestors(seen)
        )  # fmt: skip

    def _was_forked_by_its_rank(self, seen: _Seen, known: Mapping[int, Numbers]) -> bool:
        """Whether a rank of its numbers, or what that had started, has forked it, and may have gone the moment after:
        by its session or process group, which a rank that its launcher had begin one leaves to what it starts (nobody
        else's pid is its number for as long as there is a process in it); or by its stack, where it has begun a session
        of its own (daemon(3)): that begins at the address that the kernel had drawn for the rank."""
        its = {pid for pid, numbers in known.items() if numbers == _numbers(seen)}
        return not its.isdisjoint(seen.leaders) or (seen.pid not in known and self._has_stack_of(seen, its))

    def _has_stack_of(self, seen: _Seen, ranks: Collection[int]) -> bool:
        """Whether its stack begins where that of one of these ranks does, which began before it. What forks one attempt
        after the other has that address, too, and is seen above it."""
        if not seen.stack_start:
            return False
        before = (self._stacks[pid] for pid in ranks if pid in self._stacks)
        alike = any(
            stack_start == seen.stack_start and start_ticks < seen.start_ticks for start_ticks, stack_start in before
        )
        forks_ranks = any(
            above.stack_start == seen.stack_start and not above.is_below for above in self._ancestors(seen)
        )
        return alike and not forks_ranks and self._draws_addresses(seen)

    def _draws_addresses(self, seen: _Seen) -> bool:
        """Whether the kernel draws the addresses of a process: else the same program has the same ones each time."""
        try:
            with open(f"{self._proc}/sys/kernel/randomize_va_space", "rb") as file:
                drawn = file.read(8).strip() not in (b"", b"0")
            return drawn and not int(self._read(seen, "personality", 16), 16) & _ADDR_NO_RANDOMIZE
        except (OSError, ValueError):
            return False

    def _launches(self, pid: int, seen: _Seen) -> bool:
        if seen.is_launcher is None:
            seen.is_launcher = self._is_called_launcher(pid)
        return seen.is_launcher

    def _is_called_launcher(self, pid: int) -> bool:
        return is_launcher(self._arguments(pid))

    def _arguments(self, pid: int) -> list[str]:
        try:
            data = self._read(self._seen[pid], "cmdline", _ARGUMENTS_LIMIT_BYTES)
            return data.decode("utf-8", "surrogateescape").split("\0")
        except OSError:
            return []

    def _look_for_torch(self, seen: _Seen) -> None:
        if seen.torch_seen:
            seen.torch_seen += 1
        elif seen.torch_reads < _TORCH_READS and self._may_read(seen.uid):
            seen.torch_reads += 1
            seen.torch_seen = 1 if self._has_torch(seen) else 0

    def _has_torch(self, seen: _Seen) -> bool:
        try:
            return b"/libtorch" in self._read(seen, "maps", _MAPS_LIMIT_BYTES)
        except OSError:
            return False


def _name_of(thread: str) -> bytes:
    """Of a thread, by its folder; nothing where it has ended."""
    try:
        with open(f"{thread}/comm", "rb") as file:
            return file.read()
    except OSError:
        return b""


def numbers_of(names: RankNames) -> Numbers:
    """Return which rank it is, whatever its job is called."""
    return names.rank, names.local_rank, names.world_size


def _numbers(seen: _Seen) -> Numbers | None:
    return numbers_of(seen.names) if seen.names else None


def is_launcher(argv: Sequence[str]) -> bool:
    """By the program itself: `python [options] /venv/bin/torchrun …`, `python -m torch.distributed.run …`."""
    if not argv or os.path.basename(argv[0]) in _LAUNCHER_PROGRAMS:
        return bool(argv)
    for word, following in pairwise(argv[1:]):
        if word == "-m":
            return following in MODULES
        if not word.startswith("-"):
            return os.path.basename(word) in _LAUNCHER_PROGRAMS
    return False
