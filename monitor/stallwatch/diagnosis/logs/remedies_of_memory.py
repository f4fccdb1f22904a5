"""A GPU that ran out of memory: what it means and what to do, by what PyTorch's own text tells of it."""

import re
from typing import Final

from stallwatch.diagnosis.logs.remedies_by_text import Words

_SIZE: Final = r"(?P<{}>[\d.]+) ?(?P<{}_unit>[KMG]iB)"
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ALLOCATED: Final = re.compile(_SIZE.format("size", "size") + r" (?:is allocated by PyTorch|already allocated)")
_UNALLOCATED: Final = re.compile(_SIZE.format("size", "size") + r" is reserved by PyTorch but unallocated")
_RESERVED: Final = re.compile(_SIZE.format("size", "size") + r" reserved in total by PyTorch")
_OTHERS: Final = re.compile(r"\bProcess (?P<pid>\d+) has " + _SIZE.format("size", "size") + r" memory in use")
# PyTorch prints its own process' share as such since 2.2; before that as "Process <own pid>".
_OWN: Final = "this process has"
_NO_SIZE: Final = "more than 1EB memory"  # c10 CUDACachingAllocator, where a size is no positive number of 60 bits
_FRAGMENTED: Final = 0.1  # of what is reserved, below which another way of allocating gains nothing
_LESS: Final = (
    "a smaller batch (with gradient accumulation), activation checkpointing, the model's states sharded over the ranks "
    "(FSDP, DeepSpeed ZeRO 2 or 3) or offloaded to the CPU (FSDP CPUOffload, ZeRO offload_optimizer)"
)

_REPORT_FAILED: Final = (
    " So this assertion mostly means: it stands where PyTorch reports that memory ran out, and asks NVML who holds it; "
    "NVML is missing here, or of another version than the driver."
)
_MEND_NVML: Final = (
    "nvidia-smi where the rank runs: if that fails, mend the driver and its library (reboot after an upgrade; "
    "docker run --gpus all with NVIDIA_DRIVER_CAPABILITIES=compute,utility), and the next report is whole"
)


def memory_words(text: str) -> Words:
    """Given what was written of a GPU without memory, return what it means and what to do."""
    if _NO_SIZE in text:
        return Words(
            "A rank asked for more memory than there is anywhere: that is no size, but bytes that it received as one.",
            "find the collective before that line that this rank called and the others did not (or with another shape "
            "or type): gather_object and its like send sizes first; TORCH_DISTRIBUTED_DEBUG=DETAIL names it in a small "
            "run",
        )
    why = "A rank ran out of GPU memory and left; the others waited for it in the next collective."
    steps = []
    if "NVML_SUCCESS" in text:
        why += _REPORT_FAILED
        steps.append(_MEND_NVML)
    if pids := _other_processes(text):
        listed = ", ".join(f"{pid} ({size})" for pid, size in pids)
        why += f" Other processes hold memory of this GPU: {listed}."
        steps.append(f"see whose they are: ps -o pid,user,args -p {','.join(pid for pid, _ in pids)}")
    else:
        steps.append("on one rank only: left-over processes on its GPU (nvidia-smi), or longer samples there")
    steps.append(f"on all: {_LESS}")
    if (share := _unallocated_share(text)) is None or share >= _FRAGMENTED:
        steps.append(f"against fragments: {_allocator(text)}")
    return Words(why, "; ".join(steps))


def _allocator(text: str) -> str:
    """The setting that this version of PyTorch knows: it names its own; the older name is read by all."""
    name = "PYTORCH_ALLOC_CONF" if re.search(r"\bPYTORCH_ALLOC_CONF\b", text) else "PYTORCH_CUDA_ALLOC_CONF"
    old = "max_split_size_mb" in text and "expandable_segments" not in text
    return f"{name}={'max_split_size_mb:128' if old else 'expandable_segments:True'}"


def _other_processes(text: str) -> list[tuple[str, str]]:
    if _OWN not in text:
        return []
    found = {match["pid"]: f"{match['size']} {match['size_unit']}" for match in _OTHERS.finditer(text)}
    return list(found.items())[:3]


def _bytes(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match["size"]) * _UNITS[match["size_unit"]] if match else None


def _unallocated_share(text: str) -> float | None:
    """Of what PyTorch holds, the share that it has not given out; None where the text does not tell."""
    allocated, unallocated, reserved = (_bytes(one, text) for one in (_ALLOCATED, _UNALLOCATED, _RESERVED))
    if allocated is None or (unallocated is None and reserved is None):
        return None
    free = unallocated if unallocated is not None else max(0.0, (reserved or 0.0) - allocated)
    return free / (allocated + free) if allocated + free else None
