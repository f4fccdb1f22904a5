"""Ranks whose calls did not fit together: what it means and what to do, by what differs."""

from typing import Final

from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.model.verdict import Mismatch

_WHY: Final = {
    "op": "Ranks called different collectives at the same place.",
    "size": "Ranks called the same collective with tensors of different shapes.",
    "dtype": "Ranks called the same collective with tensors of different data types or devices.",
    "count": "Ranks had made different numbers of calls when they came to this one: one of them makes a call more.",
}
_REMEDY: Final = {
    "op": "make every rank call the same collectives in the same order; look for `if rank == 0:` around one of them, "
    "and for a branch on its data",
    "size": "print(rank, tensor.shape) before that call; pad or cut to one shape, or gather the sizes first: a last "
    "batch, a sequence or a bucket whose length differs by rank",
    "dtype": "print(rank, tensor.dtype, tensor.device) before that call; look for autocast, a cast or a default that "
    "only some ranks take",
    "count": "look for a loop, an accumulation or an evaluation that runs another number of times on some ranks "
    "(uneven data), and for a collective under `if rank == 0:` before this one",
}


def mismatch_words(differs: Mismatch) -> Words:
    """Given what differs, return what it means and what to do."""
    return Words(_WHY[differs.kind], _REMEDY[differs.kind])
