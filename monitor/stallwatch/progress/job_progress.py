"""A job of ranks: how many of them must move for it to move, and what many steps of it say against one look."""

from collections.abc import Sized

from stallwatch.model.verdict import Cause, Rejected

# One rank of so many that works on while all others stand in communication is what they wait for.
_MOVERS = 4
BY_STEPS = "heartbeats over many steps"  # the source of what they say


def many_move(moving: Sized, seen: Sized) -> bool:
    """Whether as many ranks move as make a job that moves."""
    return _MOVERS * len(moving) >= len(seen)


def overruled_by_steps(cause: Cause) -> Rejected:
    """Why what one look says is not so."""
    return Rejected(cause, "what the last steps show does not overrule what all steps since it began show")
