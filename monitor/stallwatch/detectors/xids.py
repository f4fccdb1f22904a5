"""How many XIDs each GPU has had. The driver's events and the kernel's log tell of the same ones: the larger count."""

import msgspec

from stallwatch.formats.xid import bus_address
from stallwatch.model.gpu import Gpu
from stallwatch.model.incident import XidCount
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import NodeSnapshot

_Gpu = tuple[str, str, int]  # index, uuid, code
_Told = frozenset[tuple[_Gpu, int | None, str]]  # of which GPU, when, in which words


class _Source(msgspec.Struct, frozen=True):
    present: _Told = frozenset()  # bounded: a snapshot holds those of the last minutes, and none comes back
    counts: tuple[tuple[_Gpu, int], ...] = ()

    def seen(self, told: _Told) -> "_Source":
        counts = dict(self.counts)
        for gpu, _, _ in told - self.present:
            counts[gpu] = counts.get(gpu, 0) + 1
        return _Source(told, tuple(sorted(counts.items())))


class XidState(msgspec.Struct, frozen=True):
    """XIDs counted so far, by the driver and by the kernel's log."""

    driver: _Source = _Source()
    kernel: _Source = _Source()


def count(before: XidState, snapshot: NodeSnapshot) -> XidState:
    """Given what was counted and a new snapshot, return the counts with what it tells for the first time."""
    gpus = snapshot.gpus.value if isinstance(snapshot.gpus, Known) else ()
    told = frozenset(
        (_of(gpu, event.xid), event.at_ns, "") for gpu in gpus for event in gpu.events if event.xid is not None
    )
    # A driver that does not answer for a moment tells of the same events again once it does.
    silent = not isinstance(snapshot.gpus, Known)
    driver = before.driver if silent or told == before.driver.present else before.driver.seen(told)
    if not isinstance(snapshot.host, Known):
        return XidState(driver, before.kernel)
    by_address = {bus_address(gpu.pci_bus_id): gpu for gpu in gpus if gpu.pci_bus_id}
    logged = set()
    for notice in snapshot.host.value.notices:
        if notice.xid is not None:
            address = bus_address(notice.pci_bus_id or "")
            gpu = by_address.get(address)
            whose = _of(gpu, notice.xid) if gpu else ("", f"pci:{address}", notice.xid)
            logged.add((whose, notice.at_ns, notice.text))
    kernel = before.kernel if logged == before.kernel.present else before.kernel.seen(frozenset(logged))
    return XidState(driver, kernel)


def totals(state: XidState) -> tuple[XidCount, ...]:
    """Counts by GPU and XID, each error once."""
    driver, kernel = dict(state.driver.counts), dict(state.kernel.counts)
    return tuple(XidCount(*gpu, max(driver.get(gpu, 0), kernel.get(gpu, 0))) for gpu in sorted({**driver, **kernel}))


def _of(gpu: Gpu, xid: int) -> _Gpu:
    return str(gpu.index), gpu.uuid, xid
