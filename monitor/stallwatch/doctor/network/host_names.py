"""Names: what this host is called, and where MASTER_ADDR leads. PyTorch never says that DNS was the trouble."""

from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.environment.job_size import job_size, said_nodes
from stallwatch.doctor.surroundings import Lookup, NamedEnvironment, Surroundings
from stallwatch.formats.addresses import is_loopback
from stallwatch.model.reading import Known, Unavailable


def spans_nodes(surroundings: Surroundings) -> bool | None:
    """Whether the job has ranks on other nodes; None: nothing says so."""
    if surroundings.question.nodes is not None:
        return surroundings.question.nodes > 1
    for environment in surroundings.environments:
        if size := job_size(environment.values):
            return size.local < size.world
        if nodes := said_nodes(environment.values):
            return nodes > 1
    return None


def own_addresses(surroundings: Surroundings) -> frozenset[str]:
    """Return all addresses of this node's interfaces, without the zone of link-local ones."""
    return frozenset(
        address.split("%")[0] for interface in surroundings.sockets.interfaces() for address in interface.addresses
    )


def is_own_address(surroundings: Surroundings, name: str) -> bool | None:
    """Whether a name leads to this node; None: it leads nowhere, or nobody answers."""
    if name.lower() in ("localhost", "127.0.0.1", "::1", surroundings.host_name.lower()):
        return True
    reading = surroundings.resolver.lookup(name)
    if not isinstance(reading, Known) or not reading.value.addresses:
        return None
    own = own_addresses(surroundings)
    return any(is_loopback(address) or address in own for address in reading.value.addresses)


def _master_address(surroundings: Surroundings) -> tuple[str, NamedEnvironment, Known[Lookup] | Unavailable]:
    """The name, where it is set, and what it resolves to."""
    said = surroundings.variable("MASTER_ADDR")
    if said is None:
        raise Inapplicable("MASTER_ADDR is not set")
    name, environment = said
    return name, environment, surroundings.resolver.lookup(name)


class MasterAddress:
    """Looks the name up as training would (getaddrinfo); an error where nothing comes of it."""

    name: ClassVar[str] = "master_address"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = "MASTER_ADDR that resolves to nothing, or a resolver that does not answer"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        name, environment, reading = _master_address(surroundings)
        if not isinstance(reading, Known):
            return (
                finding(
                    self, "error", environment.place,
                    seen=f"MASTER_ADDR={name}: {reading.reason}.",
                    why="Every rank waits for this answer before it can reach the store; PyTorch prints only \"client "
                    "socket has timed out\".",
                    remedy="check /etc/resolv.conf and the DNS server, or set MASTER_ADDR to the address itself",
                ),
            )  # fmt: skip
        if not reading.value.addresses:
            return (
                finding(
                    self, "error", environment.place,
                    seen=f"MASTER_ADDR={name} does not resolve: {reading.value.error}.",
                    why="No rank can reach the store; PyTorch prints only \"client socket has timed out\" and never "
                    "names DNS.",
                    remedy=f"getent hosts {name}; correct the name, or set MASTER_ADDR to the address of rank 0's node",
                    source="reproduced with torch 2.13",
                ),
            )  # fmt: skip
        if spans_nodes(surroundings) and all(is_loopback(address) for address in reading.value.addresses):
            return (
                finding(
                    self, "error", environment.place,
                    seen=f"MASTER_ADDR={name} is {', '.join(reading.value.addresses)}, and the job spans nodes.",
                    why="Every node then waits for a store of its own.",
                    remedy="export MASTER_ADDR=<address of rank 0's node that the others reach>",
                ),
            )  # fmt: skip
        return ()


class HostName:
    """Looks up this host's own name, as gloo and torchrun do at their start; with GLOO_SOCKET_IFNAME gloo does not."""

    name: ClassVar[str] = "host_name"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = (
        "a host name that does not resolve, or to an address that peers cannot reach (gloo uses it)"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        name = surroundings.host_name
        several = spans_nodes(surroundings)
        reading = surroundings.resolver.lookup(name)
        if not isinstance(reading, Known):
            return (
                finding(
                    self, "error", name,
                    seen=f"Looking up this host's own name: {reading.reason}.",
                    why="gloo and torchrun look it up at start and wait as long.",
                    remedy=f"add it to /etc/hosts, or repair DNS: getent hosts {name}",
                ),
            )  # fmt: skip
        addresses = reading.value.addresses
        # A named interface makes gloo independent of the name.
        if surroundings.variable("GLOO_SOCKET_IFNAME"):
            return ()
        if not addresses:
            return (
                finding(
                    self, "warning" if several else "info", name,
                    seen=f"This host's own name does not resolve: {reading.value.error}.",
                    why="gloo falls back to the loopback address, which no other node reaches.",
                    remedy=f"echo \"<address> {name}\" >> /etc/hosts, or export GLOO_SOCKET_IFNAME=<interface>",
                    source="gloo: \"Unable to resolve hostname to a (local) address\"",
                ),
            )  # fmt: skip
        if all(is_loopback(address) for address in addresses):
            return (
                finding(
                    self, "error" if several else "info", name,
                    seen=f"This host's name resolves to {', '.join(addresses)} only.",
                    why="gloo tells peers this address: \"connectFullMesh failed … remote=[127.0.0.1]\" on other "
                    "nodes. It is right for a job on this node alone.",
                    remedy="export GLOO_SOCKET_IFNAME=<the interface that leads to the other nodes>, or correct "
                    "/etc/hosts",
                    source="aws-do-eks#69",
                ),
            )  # fmt: skip
        return ()


class AddressFamily:
    """Compares the first address of MASTER_ADDR with those of this node; Inapplicable where it does not resolve."""

    name: ClassVar[str] = "address_family"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = "MASTER_ADDR that resolves to IPv6 first on a node without a usable IPv6 address"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        name, environment, reading = _master_address(surroundings)
        if not isinstance(reading, Known) or not reading.value.addresses:
            raise Inapplicable("MASTER_ADDR does not resolve")
        addresses = reading.value.addresses
        usable = any(
            ":" in address and not is_loopback(address) and not address.lower().startswith("fe80")
            for address in own_addresses(surroundings)
        )
        loopback = any(address == "::1" for address in own_addresses(surroundings))
        first = addresses[0]
        reachable = loopback if is_loopback(first) else usable
        if ":" not in first or reachable:
            return ()
        four = next((address for address in addresses if ":" not in address), "")
        return (
            finding(
                self, "warning" if four else "error", environment.place,
                seen=f"MASTER_ADDR={name} is {first} first, and this node has no address of that family.",
                why="PyTorch tries IPv6 first (errno 97 or 99 in its log); each rank waits for that to fail"
                + (" before it takes IPv4." if four else "."),
                remedy=f"export MASTER_ADDR={four}" if four else "set MASTER_ADDR to an IPv4 address",
                source="pytorch#64926, pytorch#77523",
            ),
        )  # fmt: skip
