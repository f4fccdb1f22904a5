"""What an incident may hold: a bundle may be anybody's, and what it announces costs whoever reads it.

A file of its own: held by every reader of a bundle's files, and by the loop that writes the timeline."""

from typing import Final

# The largest jobs have some 100,000 ranks.
MOST_RANKS: Final = 1 << 18
MOST_CAVEATS: Final = 500
# Two minutes of 16 ranks with 128 children each are some 25 MB.
LONGEST_TIMELINE_BYTES: Final = 64 << 20


def is_world(size: int | None) -> bool:
    """Whether a job may have so many ranks."""
    return size is not None and 0 < size <= MOST_RANKS


def is_rank(rank: int | None) -> bool:
    """Whether a number may be a rank: not negative, and below what any job has."""
    return rank is not None and 0 <= rank < MOST_RANKS
