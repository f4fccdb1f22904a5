"""CPU time as the kernel counts it, in clock ticks, and how much of it programs must take to be work."""

from stallwatch.clock import SECOND_NS

CLOCK_TICKS_PER_SECOND = 100  # sysconf(_SC_CLK_TCK) of every Linux that runs torch
CLOCK_TICK_NS = SECOND_NS // CLOCK_TICKS_PER_SECOND

# A loop that polls by programs (python3, to connect, once a second) takes a tenth of a core by them, one that works
# nearly all of it.
_PROGRAMS_WORK_SHARE = 0.5


def programs_work(share: float) -> bool:
    """Whether the children of a rank work by programs that they run to their end: given the share of a core that these
    and the children took together."""
    return share >= _PROGRAMS_WORK_SHARE
