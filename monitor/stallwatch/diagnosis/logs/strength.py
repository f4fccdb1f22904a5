"""How much each kind of failure says of a first cause: a table."""

from typing import Final

from stallwatch.model.log_event import PROCESS_ENDS

# What names a cause by itself, the strongest first. Everything below "exception" is what others saw of it.
CAUSES: Final[tuple[tuple[str, ...], ...]] = (
    ("address_in_use",),
    ("gpu_xid", "gpu_lost", "gpu_unreachable"),
    ("out_of_memory", "memory_killed", "memory_allocation", "shared_memory", "dataloader_killed", "open_files",
     "locked_memory", "duplicate_gpu", "cuda_error", "native_crash", "node_failed", "evicted"),
    ("collective_mismatch", "size_mismatch", "nccl_version_mismatch", "barrier_absent"),
    ("exception", "not_started", "native_exception"),
    ("cancelled",),
    ("nccl_no_interface", "nccl_no_adapter", "name_unresolved", "hung_task", "pcie_error", "link_down",
     "adapter_error", "node_memory"),
    PROCESS_ENDS,
    ("actor_died",),
    ("nccl_async_event", "nccl_completion_error", "nccl_connect", "nccl_handshake"),
    ("gloo_connect", "init_timeout", "store_unreachable"),
    ("nccl_error", "storage_silent"),
    ("desync_absent", "collective_timeout", "gloo_timeout"),
    ("heartbeat_stuck", "gil_clue"),
    ("program_died",),  # the shell's last word, whatever was told before
    ("interrupted",),
)  # fmt: skip
PLACE: Final = {kind: place for place, kinds in enumerate(CAUSES) for kind in kinds}
OF_A_RANK: Final = frozenset(kind for kinds in CAUSES[: PLACE["exception"] + 1] for kind in kinds)
TIMEOUTS: Final = ("collective_timeout", "gloo_timeout")
