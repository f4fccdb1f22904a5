"""What people call the operations that recorders, watchdogs and the DETAIL wrapper name each in its own way."""

from typing import Final

# By the name without case and underscores: "_allgather_base" (Gloo's recorder), "_all_gather_base" (NCCL's) and
# "_ALLGATHER_BASE" (its watchdog) are one call. NCCL records a barrier as the all-reduce that it is, and all-to-all of
# one tensor with uneven parts as "all_to_allv"; with even parts it says "all_to_all", as of a list.
_WORDS: Final = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce_coalesced",
    "allreducebarrier": "barrier",
    "allgather": "all_gather",
    "allgatherbase": "all_gather_into_tensor",
    "allgathercoalesced": "all_gather_coalesced",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all_single",
    "alltoallv": "all_to_all_single",
    "p2p": "a send or receive",
}


def operation_name(name: str | None) -> str:
    """Given an operation as torch names it anywhere, return the function that people call, "" for None or nothing. What
    is unknown stays as it is; in capitals, which only the back end writes, it becomes small."""
    if not name:
        return ""
    known = _WORDS.get(name.replace("_", "").lower())
    return known or (name.strip("_").lower() if name.isupper() else name)
