"""Which variables of the environment all ranks of a job on a node have alike in health."""

from typing import Final

_PREFIXES: Final = ("NCCL_", "TORCH_", "GLOO_", "UCX_", "FI_", "PYTORCH_", "CUDA_")
# What is each rank's own by right: where it writes, what it says, which device of the node it uses.
_OWN_ENDINGS: Final = (
    "_FILE", "_DIR", "_DIRECTORY", "_PATH", "_LOG", "_LOGS", "_ID", "_HOSTID", "_IFNAME", "_HCA", "_DEVICES",
)  # fmt: skip
# The recorder is switched on by us, where the user did not; of MPS each rank may have its own share and server.
_OWN_WORDS: Final = ("DEBUG", "LOG", "TRACE", "_FR_", "_MPS_")
_MATTERS: Final = ("TORCH_DISTRIBUTED_DEBUG",)  # DETAIL adds collectives: on one rank alone the job hangs


def is_alike_in_health(name: str) -> bool:
    """Whether a variable that ranks have unlike, or only some have, is a fault."""
    own = name.endswith(_OWN_ENDINGS) or any(word in name for word in _OWN_WORDS)
    return name in _MATTERS or (name.startswith(_PREFIXES) and not own)
