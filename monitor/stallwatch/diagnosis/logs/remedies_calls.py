"""Ranks whose calls did not fit together: what it means and what to do, by what differs."""

from typing import Final

from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.model.verdict import Mismatch

_WHY: Final = {
    "op": "Ranks called different collectives at the same place.",
    "size": "Ranks called the same collective with tensors of different shapes.",
    "dtype": "Ranks called the same collective with tensors of different data types or devices.",
    "count": "The sequence numbers differ: one side is a collective (or more) behind the other, which it skipped or "
    "the other made extra. Operations and shapes that differ follow from that.",
}
_REMEDY: Final = {
    "op": "make every rank call the same collectives in the same order; look for `if rank == 0:` around one of them, "
    "and for a branch on its data",
    "size": "print(rank, tensor.shape) before that call; pad or cut to one shape, or gather the sizes first: a last "
    "batch, a sequence or a bucket whose length differs by rank",
    "dtype": "print(rank, tensor.dtype, tensor.device) before that call; look for autocast, a cast or a default that "
    "only some ranks take",
    "count": "look before this call for a collective that one side skipped or made extra: one under `if rank == 0:`, "
    "in an except or an early return, or in a loop, an accumulation or an evaluation that runs another number of times "
    "on some ranks (uneven data)",
}


def mismatch_words(differs: Mismatch) -> Words:
    """Given what differs, return what it means and what to do."""
    return Words(_WHY[differs.kind], _REMEDY[differs.kind])
