"""A job of ranks: how many of them must move for it to move."""

from collections.abc import Sized

# One rank of so many that works on while all others stand in communication is what they wait for.
_MOVERS = 4


def many_move(moving: Sized, seen: Sized) -> bool:
    """Whether as many ranks move as make a job that moves."""
    return _MOVERS * len(moving) >= len(seen)
