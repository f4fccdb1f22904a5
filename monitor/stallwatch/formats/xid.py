"""XIDs that matter to a hang, by NVIDIA's catalogue: which stop work by themselves, and which only follow."""

from typing import Final

# Time-outs, halts, uncontained memory errors, off the bus, GSP and fatal errors.
GPU_FAULTS: Final = frozenset(
    {38, 44, 46, 48, 57, 59, 61, 62, 66, 64, 79, 95, 109, 110, 119, 120, 140, 143, 154, 158, 167, 169, 171, 172}
)
# A kernel's own fault, mostly a bug of the job: it ends the work of that process, and 43 and 45 follow. So does a
# memory error that was contained to one process.
LEADING: Final = frozenset({8, 13, 31, 32, 68, 69, 94})
# Of these, exceptions of a kernel and accesses outside of an allocation: NVIDIA's catalogue says "restart application",
# and the GPU is sound.
OF_THE_JOB: Final = frozenset({13, 31, 68, 69})
# NVLink, its training and its fatal events.
FABRIC_FAULTS: Final = frozenset({74, 136, *range(144, 151), 155})
# Follow from another XID, from a killed process, or need nothing: never a cause alone.
FOLLOW_ON: Final = frozenset({43, 45, 63, 92, 121, 137})

# Of these, what the driver says as it ends a process' work, for that of another one or by itself.
ENDS_PROCESS: Final = frozenset({43, 45})


def bus_address(pci_bus_id: str) -> str:
    """Return "0000:3b:00" for the kernel's "0000:3B:00.0" and for NVML's "00000000:3B:00.0"; "" for anything else."""
    parts = pci_bus_id.lower().split(".")[0].split(":")
    if len(parts) < 2:
        return ""
    domain, rest = (parts[0], parts[1:3]) if len(parts) >= 3 else ("0000", parts)
    return ":".join((domain[-4:].rjust(4, "0"), *rest))
