"""Health without a hang: what will become a fault, or already costs speed. Only facts that the snapshot has.

A GPU's condition is a finding of the jobs that use it, a node's of every job here. Errors that stop work are the
hardware detector's.
"""

from collections.abc import Iterator
from statistics import median

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.detectors.history import NodeHistory
from stallwatch.model.finding import Finding
from stallwatch.model.gpu import Gpu, missing_lanes
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import DiskSample, HostSample, JobKey, NetworkPort

# A condition must last: clocks dip, caches fill and empty. Seconds until it is told.
_LASTS_SECONDS = 60.0
_FULL = 0.95
_FEW_FILES_LEFT = 0.9
_LITTLE_MEMORY_BYTES = 1 << 30
_DISK_FULL = 0.98
_LITTLE_DISK_BYTES = 16 << 30  # two per cent of a large file system are room enough
_CHECKPOINT_BYTES = 64 << 20  # a smaller file is a log
_FAR_FROM_PEERS = 1.2  # times the median of the other ranks' GPUs of the same job
_ERRORS = 100  # link errors and replays between two slow reads (ten seconds or more) that are more than noise
_KEPT_ERRORS_NS = 300 * SECOND_NS


class Complaint(msgspec.Struct, frozen=True):
    """One thing that is wrong, by a key that does not change while it lasts."""

    key: str
    text: str
    gpu: str = ""  # uuid; "" concerns the whole node
    job: JobKey | None = None  # None: every job here, or on this GPU
    ranks: tuple[int, ...] = ()  # of that job


class Lasting(msgspec.Struct, frozen=True):
    """Something wrong with the node, since when."""

    key: str
    since_ns: int


class Counters(msgspec.Struct, frozen=True):
    """A GPU's error counters at the last slow read, and when they last rose by more than noise."""

    uuid: str
    slow_at_ns: int
    ecc: int | None
    replays: int | None
    nvlink: int | None
    rose_ns: tuple[tuple[str, int], ...] = ()


class PortSeen(msgspec.Struct, frozen=True):
    """A network port as it was last seen."""

    name: str
    was_up: bool


class HealthState(msgspec.Struct, frozen=True):
    """What is remembered of the node itself."""

    lasting: tuple[Lasting, ...] = ()
    counters: tuple[Counters, ...] = ()
    ports: tuple[PortSeen, ...] = ()


class HealthDetector:
    """What is wrong with the node itself: its finding comes to each of its jobs."""

    name = "health"

    def start(self) -> HealthState:
        """The state before the first tick: no condition lasts."""
        return HealthState()

    def step(self, state: HealthState, seen: NodeHistory) -> tuple[HealthState, tuple[Finding, ...]]:
        """Given counters and gauges, return a finding for each condition that has lasted long enough to be told."""
        counters = tuple(_count(gpu, state.counters, seen.at_ns) for gpu in seen.gpus)
        ports = _ports(state.ports, seen.host)
        conditions = [*_of_gpus(seen, counters), *(_of_host(seen.host, ports) if seen.host else ())]
        conditions += [*_unlike(seen), *_of_processes(seen)]
        known = {lasting.key: lasting for lasting in state.lasting}
        lasting = {c.key: known.get(c.key, Lasting(c.key, seen.at_ns)) for c in conditions}
        findings = tuple(self._findings(conditions, lasting, seen))
        return HealthState(tuple(lasting.values()), counters, ports), findings

    def _findings(
        self, conditions: list[Complaint], lasting: dict[str, Lasting], seen: NodeHistory
    ) -> Iterator[Finding]:
        pids = {gpu.uuid: gpu.compute_pids or () for gpu in seen.gpus}
        for job, ranks in seen.jobs():
            alive = [rank for rank in ranks if rank.alive]
            for condition in conditions:
                if condition.job not in (None, job):
                    continue
                mine = [r for r in alive if not condition.gpu or r.sample.pid in pids.get(condition.gpu, ())]
                mine = [r for r in mine if not condition.ranks or r.sample.rank in condition.ranks]
                if mine:
                    yield self._finding(job, tuple(r.sample.rank for r in mine), condition, lasting, seen.at_ns)

    def _finding(
        self, job: JobKey, ranks: tuple[int, ...], condition: Complaint, lasting: dict[str, Lasting], at_ns: int
    ) -> Finding:
        since_ns = lasting[condition.key].since_ns
        return Finding(
            detector=self.name,
            stage="confirmed" if at_ns - since_ns >= _LASTS_SECONDS * SECOND_NS else "suspect",
            job=job,
            ranks=ranks,
            since_ns=since_ns,
            limit_seconds=_LASTS_SECONDS,
            reason=condition.text,
            due_ns=since_ns + int(_LASTS_SECONDS * SECOND_NS),
        )


def _unlike(seen: NodeHistory) -> Iterator[Complaint]:
    """Ranks of one job with other versions or another environment than most."""
    for job, ranks in seen.jobs():
        values: dict[str, dict[str, list[int]]] = {}
        for rank in ranks:
            for name, value in rank.heartbeat.differs if rank.alive and rank.heartbeat else ():
                values.setdefault(name, {}).setdefault(value, []).append(rank.sample.rank)
        for name, by_value in values.items():
            (most, usual), *others = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1]))
            for value, few in others:
                text = f"ranks differ: {name} is {value} on rank {_listed(few)}, {most} on rank {_listed(usual)}"
                yield Complaint(
                    f"{job.owner} {job.training_job} {job.epoch} {name} {value}", text, job=job, ranks=tuple(few)
                )


def _of_processes(seen: NodeHistory) -> Iterator[Complaint]:
    """What a rank itself is about to run out of: file handles, room for its next checkpoint."""
    for job, ranks in seen.jobs():
        name = f"{job.owner} {job.training_job} {job.epoch}"
        disks: dict[str, tuple[DiskSample, list[int]]] = {}
        for rank in ranks:
            process = rank.sample.process
            files = process.value.open_files if isinstance(process, Known) else None
            if files and files[0] > _FEW_FILES_LEFT * files[1]:
                number = rank.sample.rank
                text = f"rank {number} has {files[0]} of {files[1]} file handles open (ulimit -n)"
                yield Complaint(f"{name} files {number}", text, job=job, ranks=(number,))
            for disk in rank.sample.disks if rank.alive else ():
                if _nearly_full(disk):
                    disks.setdefault(disk.path, (disk, []))[1].append(rank.sample.rank)
        for path, (disk, writers) in disks.items():
            left = f"{disk.free_bytes / (1 << 30):.1f} GiB ({disk.free_bytes / disk.size_bytes:.1%})"
            text = f"the disk of {path} has {left} left, and rank {_listed(writers)} writes there"
            if disk.largest_file_bytes > disk.free_bytes:
                text += f": a file of {disk.largest_file_bytes / (1 << 30):.1f} GiB, as before, does not fit any more"
            yield Complaint(f"{name} disk {path}", text, job=job, ranks=tuple(writers))


def _nearly_full(disk: DiskSample) -> bool:
    little = disk.free_bytes < _LITTLE_DISK_BYTES and disk.free_bytes < (1 - _DISK_FULL) * disk.size_bytes
    checkpoint = disk.largest_file_bytes if disk.largest_file_bytes >= _CHECKPOINT_BYTES else 0
    return little or disk.free_bytes < checkpoint


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")


def _of_gpus(seen: NodeHistory, counters: tuple[Counters, ...]) -> Iterator[Complaint]:
    rose = {c.uuid: dict(c.rose_ns) for c in counters}
    for gpu in seen.gpus:
        name = f"GPU {gpu.index}"
        if reasons := gpu.slowdowns:
            heat = f" at {gpu.temperature_celsius} °C" if gpu.temperature_celsius is not None else ""
            clock = f", {gpu.sm_clock_mhz} MHz" if gpu.sm_clock_mhz is not None else ""
            yield Complaint(
                f"{gpu.uuid} slowdown", f"{name} is slowed down: {', '.join(reasons)}{heat}{clock}", gpu.uuid
            )
        if gpu.remap_failed:
            yield Complaint(f"{gpu.uuid} remap", f"{name} could not remap a bad memory row: replace it", gpu.uuid)
        elif gpu.remap_pending:
            text = f"{name} has a row remapping pending: reset it between jobs"
            yield Complaint(f"{gpu.uuid} remap", text, gpu.uuid)
        for what in rose.get(gpu.uuid, {}):
            yield Complaint(f"{gpu.uuid} {what}", f"{name}: {what} are rising", gpu.uuid)
        if lanes := missing_lanes(gpu, seen.gpus):
            yield Complaint(f"{gpu.uuid} pcie", f"{name} has {lanes[0]} of {lanes[1]} PCIe lanes", gpu.uuid)
    yield from _memory(seen)


def _memory(seen: NodeHistory) -> Iterator[Complaint]:
    """One rank's memory far from its peers', with its end near: the next larger batch ends it."""
    for _, ranks in seen.jobs():
        used = {gpu.uuid: share for gpu in seen.gpus if (share := _memory_share(gpu)) is not None}
        mine = {
            g.uuid: g
            for g in seen.gpus
            if g.uuid in used and any(r.sample.pid in (g.compute_pids or ()) for r in ranks)
        }
        for uuid, gpu in mine.items():
            others = [used[other] for other in mine if other != uuid]
            if len(others) > 1 and used[uuid] > _FULL and used[uuid] > _FAR_FROM_PEERS * median(others):
                text = f"the memory of GPU {gpu.index} is {used[uuid]:.0%} full, its peers' {median(others):.0%}"
                yield Complaint(f"{uuid} memory", f"{text}: out of memory is near", uuid)


def _memory_share(gpu: Gpu) -> float | None:
    if gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
        return None
    return gpu.memory_used_bytes / gpu.memory_total_bytes


def _of_host(host: HostSample, ports: tuple[PortSeen, ...]) -> Iterator[Complaint]:
    if host.shared_memory_bytes and host.shared_memory_bytes[0] > _FULL * host.shared_memory_bytes[1]:
        used, size = host.shared_memory_bytes
        text = f"shared memory (/dev/shm) is {used / size:.0%} full: data loaders and NCCL fail when it is"
        yield Complaint("shared memory", text)
    if host.open_files and host.open_files[0] > _FEW_FILES_LEFT * host.open_files[1]:
        yield Complaint("open files", f"{host.open_files[0]} of {host.open_files[1]} file handles of the node are open")
    if host.memory_available_bytes is not None and host.memory_available_bytes < _LITTLE_MEMORY_BYTES:
        yield Complaint("memory", f"the node has {host.memory_available_bytes >> 20} MiB of memory left")
    down = {_port_name(port): port.state for port in host.ports or () if not _is_up(port)}
    for port in ports:
        if port.was_up and port.name in down:
            yield Complaint(f"port {port.name}", f"network port {port.name} is {down[port.name]}; it was up before")


def _ports(before: tuple[PortSeen, ...], host: HostSample | None) -> tuple[PortSeen, ...]:
    was_up = {port.name: port.was_up for port in before}
    for port in host.ports or () if host else ():
        was_up[_port_name(port)] = was_up.get(_port_name(port), False) or _is_up(port)
    return tuple(PortSeen(name, up) for name, up in was_up.items())


def _port_name(port: NetworkPort) -> str:
    return f"{port.device}/{port.port}"


def _is_up(port: NetworkPort) -> bool:
    return port.state in ("active", "up", "unknown")


def _count(gpu: Gpu, before: tuple[Counters, ...], at_ns: int) -> Counters:
    nvlink = sum(count for _, count in gpu.nvlink_errors) if gpu.nvlink_errors is not None else None
    slow_at_ns = gpu.slow_at_ns or at_ns
    old = next((c for c in before if c.uuid == gpu.uuid), None)
    new = Counters(gpu.uuid, slow_at_ns, gpu.ecc_uncorrected_total, gpu.pcie_replays, nvlink)
    if old is None:
        return new
    rose = {what: since for what, since in old.rose_ns if at_ns - since < _KEPT_ERRORS_NS}
    if slow_at_ns != old.slow_at_ns:
        for what, was, now, noise in (
            ("uncorrectable ECC errors", old.ecc, new.ecc, 0),
            ("PCIe replays", old.replays, new.replays, _ERRORS),
            ("NVLink errors", old.nvlink, new.nvlink, _ERRORS),
        ):
            if was is not None and now is not None and now - was > noise:
                rose[what] = at_ns
    return msgspec.structs.replace(new, rose_ns=tuple(rose.items()))
