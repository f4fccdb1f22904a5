"""How GPUs are joined: NVLink and its fabric manager, PCIe, what ACS and IOMMU do to P2P."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, finding
from stallwatch.doctor.check_result import Area, FindingRecord, count
from stallwatch.doctor.gpu.device_state import gpu_state, label
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.model.gpu import missing_lanes

_FABRIC_NOT_SUPPORTED, _FABRIC_COMPLETED = 0, 3  # nvml.h
_SYSTEM = 50  # nvml.h NVML_TOPOLOGY_SYSTEM: across sockets
_BRIDGE_CLASS = "0x0604"
_ACS = 0x000D  # PCI Express extended capability
_ACS_REDIRECT = (
    0x04 | 0x08 | 0x10 | 0x40
)  # request redirect, completion redirect, upstream forwarding, direct translated


class FabricReady:
    """Judges each GPU by NVML's state of its NVLink fabric and by the links that are up."""

    name: ClassVar[str] = "nvlink"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = "NVLinks that are down, a fabric manager that did not register the GPU"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each GPU whose fabric is not ready, or some of whose NVLinks are down."""
        found = []
        for gpu in gpu_state(surroundings).gpus:
            state, status = gpu.fabric or (_FABRIC_NOT_SUPPORTED, 0)
            active, inactive = gpu.nvlinks or (0, 0)
            if state not in (_FABRIC_NOT_SUPPORTED, _FABRIC_COMPLETED) or status:
                found.append(
                    finding(
                        self, "error", label(gpu),
                        seen=f"The NVLink fabric is not ready (state {state}, status {status}).",
                        why="CUDA or NCCL waits for it or fails at the first collective; it is the case when the "
                        "fabric manager does not run or is of another version than the driver.",
                        remedy="systemctl status nvidia-fabricmanager; install the version of the driver and restart "
                        "it",
                        source="pytorch#129749",
                    )
                )  # fmt: skip
            elif active and inactive:
                found.append(
                    finding(
                        self, "warning", label(gpu),
                        seen=f"{inactive} of {active + inactive} NVLinks are down.",
                        why="Collectives run at the pace of the pair with the fewest links; a link that flaps ends in "
                        "XID 74.",
                        remedy=f"nvidia-smi nvlink -s -i {gpu.index}; drain the node and reset the GPUs if they stay "
                        "down",
                    )
                )  # fmt: skip
        return tuple(found)


class PcieWidth:
    """Compares widths, for a link may sleep at a lower speed but not at a lower width; all alike is how the board is
    made."""

    name: ClassVar[str] = "pcie_width"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = "a GPU on fewer PCIe lanes than it could have and others of its model have"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A warning for each GPU on fewer lanes than it could have and others of its model have."""
        gpus = gpu_state(surroundings).gpus
        return tuple(
            finding(
                self, "warning", label(gpu),
                seen=f"PCIe runs with {lanes[0]} of {lanes[1]} lanes; others of its model have as many.",
                why="Its rank is slower in every copy to the host and in network traffic; lanes drop when a riser or "
                "a slot fails.",
                remedy="check AER messages (`dmesg | grep -i 'pcie bus error'`) and the seat of the card",
            )
            for gpu in gpus
            if (lanes := missing_lanes(gpu, gpus))
        )  # fmt: skip


class Topology:
    """An info; Inapplicable to fewer than two GPUs, nothing to tell where any NVLink is up."""

    name: ClassVar[str] = "gpu_topology"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = "pairs of GPUs without NVLink that reach each other only across CPU sockets"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """One info that names the pairs which reach each other across CPU sockets."""
        state = gpu_state(surroundings)
        if len(state.gpus) < 2:
            raise Inapplicable("fewer than two GPUs")
        if any(gpu.nvlinks and gpu.nvlinks[0] for gpu in state.gpus):
            return ()
        across = [(left, right) for left, right, level in state.topology if level >= _SYSTEM]
        if not across:
            return ()
        return (
            finding(
                self, "info", f"{len(state.gpus)} GPUs",
                seen="No NVLink; " + ", ".join(f"{left}–{right}" for left, right in across[:8]) + " go across CPU "
                "sockets.",
                why="Between sockets NCCL uses shared memory of the host: /dev/shm must be large enough, and it is "
                "slow.",
                remedy="put ranks that talk most (tensor parallel) on GPUs of one socket: nvidia-smi topo -m",
            ),
        )  # fmt: skip


class PeerRedirect:
    """Inapplicable to fewer than two GPUs, and in a virtual machine, where ACS must be on and the host decides."""

    name: ClassVar[str] = "acs_iommu"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = "PCIe access control (ACS) or an IOMMU that sends P2P traffic through the CPU"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A warning for bridges that redirect P2P requests, and for an IOMMU that translates them."""
        state = gpu_state(surroundings)
        if len(state.gpus) < 2:
            raise Inapplicable("fewer than two GPUs")
        if "hypervisor" in (surroundings.text("/proc/cpuinfo") or ""):
            raise Inapplicable("a virtual machine: its host decides, and ACS must be on there")
        redirecting = list(_redirecting_bridges(surroundings.root))
        if redirecting:
            return (
                finding(
                    self, "warning", f"PCIe bridges {', '.join(redirecting[:6])}",
                    seen=f"ACS redirects P2P requests on {count(len(redirecting), 'bridge')}.",
                    why="P2P between GPUs, and GPU Direct RDMA, go up to the CPU and back: slow, and with an IOMMU "
                    "they can hang.",
                    remedy="turn ACS off in the BIOS, or per bridge: setpci -s <bridge> ECAP_ACS+0x6.w=0000  (not on "
                    "hosts of VMs)",
                    source="NCCL user guide, Troubleshooting, PCI Access Control Services",
                ),
            )  # fmt: skip
        groups = surroundings.root / "sys/kernel/iommu_groups"
        translating = groups.is_dir() and any(groups.iterdir())
        if translating and "iommu=pt" not in (surroundings.text("/proc/cmdline") or ""):
            return (
                finding(
                    self, "info", "IOMMU",
                    seen="The IOMMU is on and iommu=pt is not on the kernel's command line.",
                    why="Translated P2P can be slow, or hang on some boards.",
                    remedy="if P2P hangs: boot with iommu=pt (or with the IOMMU off)",
                    source="NCCL user guide, Troubleshooting",
                ),
            )  # fmt: skip
        return ()


def _redirecting_bridges(root: Path) -> Iterator[str]:
    """Bridges above an NVIDIA device whose ACS control redirects; only root can read that part of their space."""
    devices = root / "sys/bus/pci/devices"
    above = set()
    for device in devices.glob("*"):
        if _word(device / "vendor") == "0x10de" and _word(device / "class")[:4] == "0x03":
            above |= {part for part in device.resolve().parts if part.count(":") == 2}
    for bridge in sorted(above):
        path = devices / bridge
        if _word(path / "class")[:6] == _BRIDGE_CLASS and acs_control(_bytes(path / "config")) & _ACS_REDIRECT:
            yield bridge


def acs_control(config: bytes) -> int:
    """Given PCI configuration space, return the ACS control register; 0 when there is none or it is not readable."""
    offset, seen = 0x100, 0
    while offset and offset + 8 <= len(config) and seen < 64:
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", config, offset + 6)[0])
        offset, seen = header >> 20, seen + 1
    return 0


def _word(path: Path) -> str:
    return _bytes(path).decode("ascii", "replace").strip()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
