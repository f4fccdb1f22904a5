"""A line of the kernel's log that means something, from the node's log to the sentence of a verdict."""

import msgspec


class KernelEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """kinds: xid, sxid (of an NVSwitch), off_bus, oom_kill, hung_task, pcie_error, link_down, adapter_error,
    gpu_reset (of an AMD GPU), storage_silent (a file server or disk that does not answer)."""

    kind: str
    text: str
    line: int = 0  # of its file, from 1
    seconds: float | None = None  # since boot, where the line says
    at: str | None = None  # wall time as printed
    xid: int | None = None
    pci_bus_id: str | None = None  # "0000:3b:00", lower case, without the function
    pid: int | None = None  # in the host's PID namespace
    process: str | None = None
    fatal: bool | None = None  # what the line says of an NVLink event
    caused_by_xid: int | None = None
    corrected: bool | None = None  # of a PCIe error
    constraint: str | None = None  # of an OOM kill: "memcg" or "none" (the whole node)
    device: str | None = None  # network adapter or port, file server, disk
    source: str = ""  # file that it stands in
    at_ns: int | None = None  # CLOCK_MONOTONIC, where a sensor heard it
