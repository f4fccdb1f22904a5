"""All sensors of the node behind one call that never blocks past its deadline."""

from stallwatch.clock import Clock
from stallwatch.config import Config
from stallwatch.model.snapshot import NodeSnapshot


class Panel:
    """Owns the sensors' child processes and joins what they answer into one snapshot a tick."""

    def __init__(self, config: Config, clock: Clock) -> None:
        """Start the children; nothing is waited for."""
        raise NotImplementedError

    def look(self, tick: int) -> NodeSnapshot:
        """Ask every sensor and return within `sensors.deadline_seconds`. A sensor that has not answered by then is
        `Unavailable` with since when; its late answer is dropped, and it is asked again only after it came."""
        raise NotImplementedError

    def close(self) -> None:
        """End the children; one that hangs in the kernel is left to it."""
        raise NotImplementedError
