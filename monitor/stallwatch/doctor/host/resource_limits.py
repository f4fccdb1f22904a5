"""Limits: open files, locked memory, processes, CPUs, memory of the cgroup."""

import re
from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord, count
from stallwatch.doctor.host.cgroup import cgroup_file, cgroup_value
from stallwatch.doctor.infiniband import infiniband_ports
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.node.cgroups import kills_in

_UNLIMITED = 1 << 62
_GIB = 1 << 30
# A rank holds sockets to peers, shared-memory segments of its data loaders (one descriptor per tensor in flight with
# the default file_descriptor strategy) and libraries: some hundred without workers.
_FILES_MINIMUM, _FILES_PER_WORKER, _FILES_PER_PEER = 1024, 256, 16
_LOCKED_MINIMUM_BYTES = _GIB  # what registered buffers of NCCL can take; clusters set unlimited
_LIMIT_LINE = re.compile(r"^(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)", re.MULTILINE)


def limit(surroundings: Surroundings, name: str, pid: str = "self") -> tuple[int, int]:
    """Soft and hard limit by proc_pid_limits(5). Raise Undetermined when it cannot be read."""
    for match in _LIMIT_LINE.finditer(surroundings.text(f"/proc/{pid}/limits") or ""):
        if match[1] == name:
            soft, hard = (_UNLIMITED if word == "unlimited" else int(word) for word in match.groups()[1:])
            return soft, hard
    raise Undetermined(f"/proc/{pid}/limits does not tell {name!r}")


def _places(surroundings: Surroundings) -> list[tuple[str, str]]:
    """Where limits count: of running ranks, else our own, which a job started from this shell would get."""
    ranks = [(f"rank {rank.rank} (pid {rank.pid})", str(rank.pid)) for rank in surroundings.ranks if rank.alive]
    return ranks or [("this shell", "self")]


class OpenFiles:
    """Needs more for each data-loader worker and each rank of the job; looks at running ranks, and at this shell as
    that of the next job."""

    name: ClassVar[str] = "open_files"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "a limit of open files too low for sockets, workers and their shared tensors"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each rank or shell whose soft limit is below what sockets and workers need."""
        workers = surroundings.question.workers or 0
        world = max((rank.world_size or 0 for rank in surroundings.ranks), default=0)
        need = max(_FILES_MINIMUM, 512 + workers * _FILES_PER_WORKER + world * _FILES_PER_PEER)
        places = [(place, pid, need) for place, pid in _places(surroundings)]
        # Beside running ranks a shell counts too, as that of the next job; who only logs in has no more than usual.
        if surroundings.ranks and any(one.pid is None and not one.is_file for one in surroundings.environments):
            places.append(("this shell", "self", _FILES_MINIMUM))
        found = []
        for place, pid, need in places:
            soft, hard = limit(surroundings, "Max open files", pid)
            if soft < need:
                found.append(
                    finding(
                        self, "error" if soft < 256 else "warning", place,
                        seen=f"{soft} open files are allowed; about {need} may be needed"
                        + (f" ({count(workers, 'worker')}, {count(world, 'rank')})." if workers or world else "."),
                        why="The rank that meets the limit first fails (\"Too many open files\", \"received 0 items of "
                        "ancdata\") and the others wait for it.",
                        remedy=f"ulimit -n {min(hard, 1048576)}"
                        if hard >= need
                        else "raise nofile in /etc/security/limits.conf, LimitNOFILE= of the service, or docker run "
                        "--ulimit nofile=1048576; torch.multiprocessing.set_sharing_strategy(\"file_system\") needs "
                        "fewer",
                    )
                )  # fmt: skip
        return tuple(found)


class LockedMemory:
    """An error, for no buffer can then be registered; Inapplicable without an InfiniBand or RoCE adapter."""

    name: ClassVar[str] = "locked_memory"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "a limit of locked memory that InfiniBand's buffers do not fit in"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """An error for each rank or shell in which adapters cannot register their buffers."""
        if not infiniband_ports(surroundings):
            raise Inapplicable("no InfiniBand or RoCE adapter, which alone needs locked memory")
        found = []
        for place, pid in _places(surroundings):
            soft, _ = limit(surroundings, "Max locked memory", pid)
            if soft < _LOCKED_MINIMUM_BYTES:
                found.append(
                    finding(
                        self, "error", place,
                        seen=f"{soft >> 10} KiB of memory may be locked.",
                        why="Registering buffers with the adapter fails: \"Call to ibv_reg_mr failed … Cannot "
                        "allocate memory\".",
                        remedy="ulimit -l unlimited; memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity of "
                        "slurmd or containerd, docker run --ulimit memlock=-1",
                        source="NCCL user guide, Troubleshooting, Networking",
                    )
                )  # fmt: skip
        return tuple(found)


class Cpus:
    """Compares the CPUs that we may use with the ranks of this node; Inapplicable where nothing says how many these
    are."""

    name: ClassVar[str] = "cpus"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "fewer CPUs than ranks and data-loader workers, threads that oversubscribe them"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding where ranks and workers outnumber the CPUs, and where threads of each rank oversubscribe them."""
        ranks = surroundings.question.local_ranks or sum(rank.alive for rank in surroundings.ranks)
        if not ranks:
            said = surroundings.variable("LOCAL_WORLD_SIZE")
            ranks = int(said[0]) if said and said[0].isdigit() else 0
        if not ranks:
            raise Inapplicable("nothing says how many ranks this node has")
        cpus = cpus_allowed(surroundings)
        workers = surroundings.question.workers or 0
        found = []
        if cpus < ranks * (1 + workers):
            found.append(
                finding(
                    self, "error" if cpus < ranks / 2 else "warning", "CPUs",
                    seen=f"{count(cpus, 'CPU')} for {count(ranks, 'rank')}"
                    + (f" with {count(workers, 'worker')} each." if workers else "."),
                    why="Each rank needs a CPU for itself, and NCCL's proxy threads spin on more: ranks come late to "
                    "collectives, data loaders stall.",
                    remedy=f"ask for at least {ranks * (1 + workers)} CPUs (Slurm: --cpus-per-task, Kubernetes: "
                    "resources.cpu)"
                    + (", or use fewer workers" if workers else ""),
                )
            )  # fmt: skip
        threads = surroundings.variable("OMP_NUM_THREADS")
        if threads and threads[0].isdigit() and int(threads[0]) * ranks > 2 * cpus and int(threads[0]) > 1:
            found.append(
                finding(
                    self, "warning", threads[1].place,
                    seen=f"OMP_NUM_THREADS={threads[0]} times {count(ranks, 'rank')} on {count(cpus, 'CPU')}.",
                    why="Threads of different ranks take each other's CPUs; the slowest rank sets the pace.",
                    remedy=f"export OMP_NUM_THREADS={max(1, int(cpus // ranks))}",
                )
            )  # fmt: skip
        return tuple(found)


def cpus_allowed(surroundings: Surroundings) -> float:
    """CPUs by affinity, and by the cgroup's quota where that is less. Raise Undetermined when neither is readable."""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", surroundings.text("/proc/self/status") or "", re.MULTILINE)
    if match is None:
        raise Undetermined("/proc/self/status does not tell the CPUs")
    count = 0
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    quota = (cgroup_file(surroundings, "cpu", "cpu.max") or "").split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        return min(float(count), int(quota[0]) / int(quota[1]))
    return float(count)


class CgroupMemory:
    """Memory in use is counted without the cache of files, which the kernel takes back."""

    name: ClassVar[str] = "cgroup_memory"
    area: ClassVar[Area] = "host"
    looks_for: ClassVar[str] = "a container or slice whose memory, or number of processes, is nearly used up, or was"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding where memory or processes of the cgroup are nearly used up, or have been."""
        found = []
        most = cgroup_value(surroundings, "memory", "memory.max", "memory.limit_in_bytes")
        used = cgroup_value(surroundings, "memory", "memory.current", "memory.usage_in_bytes")
        cache = _inactive_file(surroundings)
        if most and used is not None and most < _UNLIMITED >> 2 and used - cache > 0.9 * most:
            found.append(
                finding(
                    self, "warning", "memory of the cgroup",
                    seen=f"{(used - cache) / _GIB:.1f} of {most / _GIB:.1f} GiB are used.",
                    why="The next allocation gets one process killed, and its peers wait for it.",
                    remedy="raise the limit (docker run --memory, resources.limits.memory, Slurm --mem), or use fewer "
                    "workers",
                )
            )  # fmt: skip
        killed = _oom_kills(surroundings)
        if killed:
            found.append(
                finding(
                    # The count is for ever: of a run that failed it is a clue, of a node before a run it is history.
                    self, "warning" if surroundings.question.logs else "info", "memory of the cgroup",
                    seen=f"The kernel has killed {count(killed, 'process')} of this cgroup for lack of memory.",
                    why="A killed worker or rank leaves the others waiting.",
                    remedy="raise the limit, or use fewer workers; `dmesg -T | grep -i oom` on the host names the "
                    "process",
                )
            )  # fmt: skip
        processes, allowed = (cgroup_value(surroundings, "pids", name) for name in ("pids.current", "pids.max"))
        if allowed and processes is not None and processes > 0.8 * allowed:
            found.append(
                finding(
                    self, "warning", "processes of the cgroup",
                    seen=f"{processes} of {allowed} processes and threads are used.",
                    why="A rank that cannot start a thread fails or hangs (\"can't start new thread\", pthread_create "
                    "failed).",
                    remedy="docker run --pids-limit -1, TasksMax= of the service",
                )
            )  # fmt: skip
        return tuple(found)


def _inactive_file(surroundings: Surroundings) -> int:
    """Page cache that the kernel gives back without pain."""
    text = cgroup_file(surroundings, "memory", "memory.stat") or ""
    match = re.search(r"^(?:total_)?inactive_file (\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0


def _oom_kills(surroundings: Surroundings) -> int:
    for name in ("memory.events.local", "memory.events", "memory.oom_control"):
        if (kills := kills_in(cgroup_file(surroundings, "memory", name) or "")) is not None:
            return kills
    return 0
