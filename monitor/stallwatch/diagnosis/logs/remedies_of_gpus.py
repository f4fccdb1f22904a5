"""What to do with a GPU, or a driver, that does not answer: by what NVML's callers, CUDA and ROCm wrote of it."""

import re
from typing import Final

from stallwatch.diagnosis.logs.remedies_by_text import Words

MISMATCH: Final = Words(
    "The kernel module and the library are of different versions: the driver was upgraded under running processes. No "
    "new CUDA program starts.",
    "reboot the node (or unload the nvidia modules once nobody uses them); in a container start it anew",
    "without_node",
)
NO_PERMISSION: Final = Words(
    "This user may not open the devices.",
    "add the user to the group that owns /dev/nvidia* (`ls -l /dev/nvidia*`), or pass the devices to the container "
    "(--gpus all)",
    "start",
)
LIBRARY_NOT_FOUND: Final = Words(
    "The devices are here and libnvidia-ml.so.1 is not: the container was started without the NVIDIA runtime.",
    "start the container with --gpus all (nvidia-container-toolkit)",
    "start",
)
NOT_LOADED: Final = Words("The device files are here and the driver is not loaded.", "modprobe nvidia", "without_node")
DEVICE_LOST_FROM_CONTAINER: Final = Words(
    "In a container this is what a lost device looks like: after `systemctl daemon-reload` on the host the cgroup no "
    "longer allows the devices. Running jobs go on, new ones fail.",
    "start the container anew; on the host link the devices (nvidia-ctk system create-dev-char-symlinks --create-all) "
    "so that it does not come back",
)
LOST: Final = Words(
    "The GPU is lost: it fell off the bus (XID 79) or needs a reset. A rank on it fails or hangs, and all others wait.",
    "drain the node and reboot it; exclude the GPU until then (CUDA_VISIBLE_DEVICES); with the same GPU again, have it "
    "replaced",
    "without_node",
)
NOT_FOUND: Final = Words(
    "There is no such GPU here: it fell off the bus, or this container was given fewer than the job uses.",
    "compare `nvidia-smi -L` on the host and here; look for XID 79 in the kernel log; docker run --gpus all",
)
# "Unknown Error" outside of a container is a GPU that the driver cannot reach.
UNREACHABLE: Final = Words(
    "The driver cannot reach this GPU any more: it is off the bus, or (in a container) its device was taken away.",
    "nvidia-smi and `dmesg -T | grep -i -E 'xid|nvrm|pcie'` on the host; drain the node and power it off and on; where "
    "only the container lost it, start the container anew",
    "without_node",
)
# What CUDA says.
NOT_INITIALISED: Final = Words(
    "CUDA error 802: the GPUs of an NVSwitch node are not yet joined by the fabric manager.",
    "systemctl status nvidia-fabricmanager on this node; start it, of the driver's version; `nvidia-smi -q | grep -A 2 "
    "Fabric` must say Completed",
    "without_node",
)
UNKNOWN_CUDA: Final = Words(
    "CUDA error 999: the driver cannot start a context. Mostly its modules are in a bad state (a suspended laptop, a "
    "driver upgraded under it, nvidia_uvm not loaded), or a GPU of the node has failed.",
    "nvidia-smi and `dmesg -T | grep -i -E 'xid|nvrm'`; `modprobe -r nvidia_uvm && modprobe nvidia_uvm` once nobody "
    "uses it, else reboot the node; in a container start it anew",
    "without_node",
)
FORKED: Final = Words(
    "CUDA could not start in this process: mostly one that was forked after its parent had used CUDA, as a data-loader "
    "worker is whose dataset or collate function touches the GPU.",
    'keep CUDA out of datasets and collate functions, or DataLoader(multiprocessing_context="spawn"); where no process '
    "was forked: nvidia-smi on this node",
)
NO_DEVICE: Final = Words(
    "CUDA sees no GPU: an empty or wrong CUDA_VISIBLE_DEVICES, a container without GPUs, or a driver that does not "
    "answer.",
    "nvidia-smi and echo $CUDA_VISIBLE_DEVICES on this node; docker run --gpus all; Slurm: --gres=gpu:<n>",
    "start",
)

ECC: Final = Words(
    "This GPU's memory, or its NVLink, failed.",
    "drain the node and reset the GPU (nvidia-smi -q -d ECC,ROW_REMAPPER; nvidia-smi nvlink -e); with it again, "
    "have it replaced",
    "without_node",
)

# ROCm's runtime, of the node that it numbers so (`rocm-smi --showuniqueid`, /sys/class/kfd/kfd/topology/nodes); each
# process that uses the GPU prints it.
HUNG: Final = Words(
    "A GPU does not get on with what it was given, and the driver resets it: a kernel that never ends, firmware, or "
    "the hardware. Every process that has memory of it ends with it.",
    "on that node `dmesg -T | grep -i amdgpu` (ring timeout, reset) and rocm-smi: which GPU is it? With the same GPU "
    "again, drain the node and have it replaced; with others in turn, upgrade driver and firmware",
    "without_node",
)
# Searched in this order in what NVML's caller wrote.
BY_REASON: Final[tuple[tuple[str, Words], ...]] = (
    ("gpu hang", HUNG),
    ("gpu reset begin", HUNG),
    ("amdgpu: ring ", HUNG),
    ("*error* ring ", HUNG),
    ("uncorrectable", ECC),
    ("over nvlink or a hardware error", ECC),
    ("version mismatch", MISMATCH),
    ("insufficient permissions", NO_PERMISSION),
    ("permission", NO_PERMISSION),
    ("driver not loaded", NOT_LOADED),
    ("couldn't communicate", NOT_LOADED),
    ("library not found", LIBRARY_NOT_FOUND),
    ("is lost", LOST),
    ("reset required", LOST),
    ("lost from the bus", LOST),
    ("not found", NOT_FOUND),
    ("unable to determine the device handle", UNREACHABLE),
    ("_kgsp", UNREACHABLE),
    ("unknown error", DEVICE_LOST_FROM_CONTAINER),
)

_OFF_BUS: Final = re.compile(r"fallen off the bus|GPU is lost|\bXID 79\b|\bXid \([^)]*\): 79\b")


def is_lost(text: str) -> bool:
    """Whether a text of the driver or of NVML says that a GPU is off the bus: it answers no reset."""
    return _OFF_BUS.search(text) is not None


def gpu_words(text: str) -> Words:
    """Given what was written of a GPU that does not answer, return what it means and what to do."""
    low = text.lower()
    otherwise = Words("CUDA programs will fail in the same way.", "run nvidia-smi on the host")
    return next((words for reason, words in BY_REASON if reason in low), otherwise)
