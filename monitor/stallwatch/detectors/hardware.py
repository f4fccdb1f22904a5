"""A GPU that reported an error which stops work, or does not answer any more: found at once, before any rank waits."""

from collections.abc import Iterator

import msgspec

from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.formats.xid import FABRIC_FAULTS, GPU_FAULTS, bus_address
from stallwatch.model.finding import Finding
from stallwatch.model.gpu import Gpu
from stallwatch.model.snapshot import JobKey

_STOPS_WORK = GPU_FAULTS | FABRIC_FAULTS
_EVENTS = {
    "double_bit_ecc": "reported a double-bit ECC error",
    "fatal_poison": "reported fatal poison (uncorrectable memory error)",
    "gpu_unavailable": "became unavailable",
}
_LOST = ("lost", "reset_required")


class GpuUsers(msgspec.Struct, frozen=True):
    """Who used a GPU when it was last asked: a GPU that is lost tells it no more."""

    uuid: str
    index: int
    address: str
    pids: tuple[int, ...]


class LostGpu(msgspec.Struct, frozen=True):
    """A GPU that its ranks use and NVML no longer shows."""

    uuid: str
    since_ns: int
    ticks: int


class HardwareState(msgspec.Struct, frozen=True):
    """Who uses which GPU, and which are lost."""

    users: tuple[GpuUsers, ...] = ()
    lost: tuple[LostGpu, ...] = ()


class GpuFault(msgspec.Struct, frozen=True):
    """A fault of a GPU, whose processes it is of."""

    at_ns: int
    text: str
    pids: tuple[int, ...]
    passing: bool = False  # may be one bad answer


class HardwareDetector:
    """The driver's own events and the kernel's log are believed at once; a device that does not answer, at the second
    tick."""

    name = "hardware"

    def start(self) -> HardwareState:
        """The state before the first tick: no GPU was lost."""
        return HardwareState()

    def step(self, state: HardwareState, seen: NodeHistory) -> tuple[HardwareState, tuple[Finding, ...]]:
        """Given events of drivers and kernel, return a finding for each fault that stops work, with the ranks on that
        GPU."""
        state = HardwareState(_users(state.users, seen.gpus), _lost(state.lost, seen))
        faults = [*_of_driver(state, seen), *_of_kernel(state, seen)]
        return state, tuple(self._findings(faults, seen))

    def _findings(self, faults: list[GpuFault], seen: NodeHistory) -> Iterator[Finding]:
        by_job: dict[JobKey, list[tuple[GpuFault, RankHistory]]] = {}
        for fault in faults:
            for rank in seen.ranks:
                # A rank that came later runs on what the fault left; if it does not, it will say so itself.
                if rank.sample.pid in fault.pids and _began_ns(rank) <= fault.at_ns:
                    by_job.setdefault(rank.sample.job, []).append((fault, rank))
        for job, hits in sorted(by_job.items()):
            told = dict.fromkeys(fault.text for fault, _ in hits)
            yield Finding(
                detector=self.name,
                stage="suspect" if all(fault.passing for fault, _ in hits) else "confirmed",
                job=job,
                ranks=tuple(sorted({rank.sample.rank for _, rank in hits})),
                since_ns=min(fault.at_ns for fault, _ in hits),
                limit_seconds=0.0,
                reason="; ".join(told),
                resolvable=False,
            )


def _began_ns(rank: RankHistory) -> int:
    attached_ns = rank.heartbeat.attached_ns if rank.heartbeat else -1
    return min(rank.first_seen_ns, attached_ns) if attached_ns > 0 else rank.first_seen_ns


def _users(before: tuple[GpuUsers, ...], gpus: tuple[Gpu, ...]) -> tuple[GpuUsers, ...]:
    users = {gpu.uuid: gpu for gpu in before}
    for gpu in gpus:
        known = users.get(gpu.uuid)
        # A process that was just killed by its GPU's fault has left the list: who was there stays until others come.
        pids = gpu.compute_pids or (known.pids if known else ())
        users[gpu.uuid] = GpuUsers(gpu.uuid, gpu.index, bus_address(gpu.pci_bus_id or ""), pids)
    return tuple(users.values())


def _lost(before: tuple[LostGpu, ...], seen: NodeHistory) -> tuple[LostGpu, ...]:
    known = {gpu.uuid: gpu for gpu in before}
    return tuple(
        LostGpu(gpu.uuid, known[gpu.uuid].since_ns, known[gpu.uuid].ticks + 1)
        if gpu.uuid in known
        else LostGpu(gpu.uuid, seen.at_ns, 1)
        for gpu in seen.gpus
        if gpu.unavailable_kind in _LOST
    )


def _of_driver(state: HardwareState, seen: NodeHistory) -> Iterator[GpuFault]:
    users = {gpu.uuid: gpu for gpu in state.users}
    lost = {gpu.uuid: gpu for gpu in state.lost}
    for gpu in seen.gpus:
        pids, name = users[gpu.uuid].pids, f"GPU {gpu.index}"
        for event in gpu.events:
            if event.xid in _STOPS_WORK:
                yield GpuFault(event.at_ns, f"{name} reported XID {event.xid}", pids)
            elif event.kind in _EVENTS:
                yield GpuFault(event.at_ns, f"{name} {_EVENTS[event.kind]}", pids)
        if gpu.uuid in lost:
            since = lost[gpu.uuid]
            yield GpuFault(since.since_ns, f"{name} does not answer: {gpu.unavailable}", pids, passing=since.ticks < 2)


def _of_kernel(state: HardwareState, seen: NodeHistory) -> Iterator[GpuFault]:
    by_address = {gpu.address: gpu for gpu in state.users if gpu.address}
    for notice in seen.notices:
        heard_ns = seen.at_ns if notice.at_ns is None else notice.at_ns
        if notice.kind == "sxid" and notice.fatal:
            everybody = tuple(pid for user in state.users for pid in user.pids)
            yield GpuFault(heard_ns, f"NVSwitch {notice.pci_bus_id} reported SXID {notice.xid}, fatal", everybody)
        stops = notice.kind == "xid" and notice.xid in _STOPS_WORK and notice.fatal is not False
        if not stops and notice.kind != "off_bus":
            continue
        gpu = by_address.get(notice.pci_bus_id or "")
        pids = (*(gpu.pids if gpu else ()), *((notice.pid,) if notice.pid is not None else ()))
        name = f"GPU {gpu.index}" if gpu else f"GPU {notice.pci_bus_id or 'unknown'}"
        what = "has fallen off the bus" if notice.kind == "off_bus" else f"reported XID {notice.xid}"
        yield GpuFault(heard_ns, f"{name} {what}", pids)
