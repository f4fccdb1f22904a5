"""Who this rank is, from whichever launcher started it, and the GPU or CPU that it works on."""

import contextlib
import os
from typing import Any, NamedTuple, Optional

from stallwatch.hook.identity import world_of


class NotLaunched(Exception):
    """Nobody said which rank this is, or where the others are; the message says what to do."""


class RankPlace(NamedTuple):
    """Which rank this process is, of how many, and its number on this node."""

    rank: int
    world_size: int
    local_rank: int


def place_of(environment: "dict[str, str]") -> RankPlace:
    """Given the environment of torchrun, srun or mpirun, return this rank's place, and set what torch reads (RANK,
    WORLD_SIZE, LOCAL_RANK). Raise NotLaunched where a rank or the master's address is not told."""
    world = world_of(environment, None)  # as a hook has it
    if not world.is_ranked or world.world_size < 0 or world.local_rank < 0:
        raise NotLaunched("no RANK, WORLD_SIZE and LOCAL_RANK: start it with torchrun, srun or `stallwatch selftest`")
    # torch.distributed reads these; srun and mpirun do not set them.
    os.environ.update(RANK=str(world.rank), WORLD_SIZE=str(world.world_size), LOCAL_RANK=str(world.local_rank))
    if not (environment.get("MASTER_ADDR") and environment.get("MASTER_PORT", "").isdigit()):
        raise NotLaunched("MASTER_ADDR and MASTER_PORT are not set: export the first node's name and a free port of it")
    return RankPlace(world.rank, world.world_size, world.local_rank)


def choose_backend(torch: Any, wanted: str) -> str:
    """Return the wanted backend; for "auto" nccl where torch has it and a GPU, else gloo."""
    if wanted != "auto":
        return wanted
    return "nccl" if torch.cuda.is_available() and torch.distributed.is_nccl_available() else "gloo"


def open_device(torch: Any, backend: str, index: int) -> Any:
    """Return the torch device, after it has calculated something right."""
    if backend != "nccl":
        device = torch.device("cpu")
    else:
        count = torch.cuda.device_count()
        if index >= count:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
            raise RuntimeError(f"this rank is for GPU {index}, and torch sees {count}{why}")
        torch.cuda.set_device(index)
        device = torch.device("cuda", index)
    one = torch.ones(256, 256, device=device)
    product = one @ one
    if float(product.sum()) != 256.0**3:
        raise ArithmeticError(f"256 ones times 256 ones sum up to {float(product.sum())}, not {256.0**3}")
    return device


def device_facts(torch: Any, device: Any) -> "dict[str, Any]":
    """Return what a report tells of this rank: versions, host and pid, and of a GPU its name and UUID."""
    facts: dict[str, Any] = {"torch": torch.__version__, "host": os.uname().nodename, "pid": os.getpid()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["device"] = properties.name
        facts["uuid"] = str(getattr(properties, "uuid", ""))
        facts["cuda"] = torch.version.cuda
        with contextlib.suppress(Exception):  # a number for people
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts


def free_bytes(torch: Any, device: Any, ranks_of_node: int) -> Optional[int]:
    """Memory that this rank may count on; None when nobody says."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024 // max(1, ranks_of_node)
    except OSError:
        pass
    return None
