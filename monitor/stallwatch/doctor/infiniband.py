"""InfiniBand and RoCE ports by /sys/class/infiniband."""

from typing import NamedTuple

from stallwatch.doctor.surroundings import Surroundings


class Port(NamedTuple):
    """One port of an adapter, with what the kernel's files say of it; "" where a file cannot be read."""

    adapter: str
    port: str
    state: str  # "4: ACTIVE"
    physical: str  # "5: LinkUp"
    link_layer: str  # "InfiniBand", "Ethernet"

    @property
    def is_active(self) -> bool:
        """Whether the port carries traffic: its logical state is ACTIVE."""
        return "ACTIVE" in self.state


def infiniband_ports(surroundings: Surroundings) -> tuple[Port, ...]:
    """Every port of every adapter of the node; empty where there is none."""
    folder = surroundings.root / "sys/class/infiniband"
    return tuple(
        Port(
            adapter=port.parent.parent.name,
            port=port.name,
            state=_line(surroundings, port / "state"),
            physical=_line(surroundings, port / "phys_state"),
            link_layer=_line(surroundings, port / "link_layer"),
        )
        for port in sorted(folder.glob("*/ports/*"))
    )


def _line(surroundings: Surroundings, path: object) -> str:
    relative = str(path)[len(str(surroundings.root)) :] if str(surroundings.root) != "/" else str(path)
    return (surroundings.text(relative) or "").strip()
