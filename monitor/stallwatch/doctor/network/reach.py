"""Whether this node reaches the store of rank 0: one connection with a short limit, and the way that it takes."""

from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.network.host_names import is_own_address, spans_nodes
from stallwatch.doctor.surroundings import Reach, Surroundings
from stallwatch.formats.addresses import address_words, kind_of_address
from stallwatch.model.reading import Known


class MasterReachable:
    """Connects once, as a rank would; Inapplicable where address or port is not set or does not resolve, Undetermined
    where the port is no number."""

    name: ClassVar[str] = "master_reachable"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = (
        "MASTER_ADDR:MASTER_PORT that refuses, has no route, or is silent (a firewall, a wrong interface)"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """One finding where the connection is refused, or where no answer comes; none where it opens."""
        said, port = surroundings.variable("MASTER_ADDR"), surroundings.variable("MASTER_PORT")
        if said is None or port is None:
            raise Inapplicable("MASTER_ADDR and MASTER_PORT are not both set")
        name, environment = said
        if not port[0].isdecimal() or not 0 < int(port[0]) < 65536:
            raise Undetermined(f"MASTER_PORT={port[0]} is no port")
        reading = surroundings.resolver.lookup(name)
        if not isinstance(reading, Known) or not reading.value.addresses:
            raise Inapplicable("MASTER_ADDR does not resolve")
        address = _first(surroundings, reading.value.addresses)
        reach = surroundings.sockets.connects_to(address, int(port[0]))
        if reach.outcome == "open":
            return ()
        if reach.outcome == "refused":
            return (self._refused(surroundings, environment.place, name, address, port[0]),)
        return (self._lost(surroundings, environment.place, name, address, port[0], reach),)

    def _refused(self, surroundings: Surroundings, place: str, name: str, address: str, port: str) -> FindingRecord:
        waiting = any(
            rank.alive and rank.environment.get("MASTER_PORT") == port and rank.environment.get("MASTER_ADDR") == name
            for rank in surroundings.ranks
        )
        own = is_own_address(surroundings, name)
        by_loopback = kind_of_address(address) == "loopback" and spans_nodes(surroundings)
        return finding(
            self, "warning" if waiting else "info", place,
            seen=f"Nobody listens at {_shown(name, address)}:{port}: the connection is refused.",
            why=("Ranks run here and rank 0's store is not up: they wait for it until they time out." if waiting
                 else "Rank 0 is not up: right before a start, wrong while other ranks wait.")
            + (" " + address_words(address).why if by_loopback else ""),
            remedy=("look at rank 0's own log on this node" if own else f"look at rank 0 on {name}: is its process up, "
                    "is MASTER_PORT the same on every node")
            + (f" (ss -ltn sport = :{port})"),
        )  # fmt: skip

    def _lost(
        self, surroundings: Surroundings, place: str, name: str, address: str, port: str, reach: Reach
    ) -> FindingRecord:
        way = _way(surroundings, reach.source)
        words = address_words(address)
        if reach.outcome == "no_route":
            seen = f"There is no route to {_shown(name, address)}:{port}: {reach.error}{way}."
            remedy = f"ip route get {address}; ip -br addr: is the interface to the other nodes up? {words.remedy}"
        elif reach.outcome == "silent":
            seen = f"{_shown(name, address)}:{port} is silent: no answer within {reach.seconds:g} s{way}."
            remedy = f"nc -zv {address} {port} from both sides; {words.remedy}"
        else:
            seen = f"{_shown(name, address)}:{port} cannot be connected to: {reach.error}{way}."
            remedy = words.remedy
        return finding(
            self, "error", place,
            seen=seen,
            why="Where a node is up and nobody listens, it refuses at once: silence is a firewall that drops packets, "
            f"a wrong interface, or a node that is down. {words.why}"
            if reach.outcome == "silent"
            else f"Every rank of this node waits for the store until it times out. {words.why}",
            remedy=remedy,
            source="tcp(7), connect(2)",
        )  # fmt: skip


def _first(surroundings: Surroundings, addresses: tuple[str, ...]) -> str:
    """The first address of a family that this node has; address_family tells where that is not the first of all."""
    own = [one for interface in surroundings.sockets.interfaces() for one in interface.addresses]
    has_6 = any(":" in one and not one.lower().startswith("fe80") for one in own)
    return next((one for one in addresses if ":" not in one or has_6), addresses[0])


def _shown(name: str, address: str) -> str:
    return name if name == address else f"{name} ({address})"


def _way(surroundings: Surroundings, source: str) -> str:
    """Which interface the packets leave by, as the kernel's routes have it."""
    if not source:
        return ""
    by = next(
        (
            interface.name
            for interface in surroundings.sockets.interfaces()
            if source in (one.partition("%")[0] for one in interface.addresses)
        ),
        "",
    )
    return f" (packets leave by {by}, {source})" if by else f" (packets leave from {source})"
