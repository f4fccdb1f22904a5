"""What kernels' logs tell, as events among those of other logs. Their clock is no measure for other logs' times."""

from collections.abc import Iterable
from typing import Final

from stallwatch.model.evidence import LogEvent, NodeEvidence
from stallwatch.model.kernel import KernelEvent

_KINDS: Final = {
    "xid": "gpu_xid",
    "sxid": "gpu_xid",
    "off_bus": "gpu_lost",
    "oom_kill": "memory_killed",
    "hung_task": "hung_task",
    "pcie_error": "pcie_error",
    "link_down": "link_down",
    "adapter_error": "adapter_error",
}


def kernel_events(nodes: Iterable[NodeEvidence]) -> list[LogEvent]:
    """Given nodes, return what their kernels told, without what is no outage."""
    return [_event(event, node.host) for node in nodes for event in node.kernel_events if is_outage(event)]


def is_outage(event: KernelEvent) -> bool:
    """Whether a kernel event means that a device has failed, not that an error was corrected."""
    if event.kind == "pcie_error":
        return event.corrected is False
    return event.fatal is not False


def _event(event: KernelEvent, host: str) -> LogEvent:
    return LogEvent(
        kind=_KINDS[event.kind],
        text=event.text,
        line=event.line,
        host=host,
        device=event.pci_bus_id or event.device,
        message=str(event.xid) if event.xid is not None else event.process,
        pid=event.pid,
        at=event.at,
        secondary=event.caused_by_xid is not None,
        source=event.source,
    )
