"""Interfaces: those that variables name, the loopback, fabric ports."""

from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import Inapplicable, finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.environment.combinations import places_of
from stallwatch.doctor.infiniband import Port, infiniband_ports
from stallwatch.doctor.network.host_names import spans_nodes
from stallwatch.doctor.surroundings import Interface, Surroundings
from stallwatch.formats.addresses import address_words, is_loopback, kind_of_address

_VIRTUAL = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "podman", "tun", "tap")
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


class InterfaceExists:
    """Compares with the interfaces of this node; Inapplicable where no variable names one."""

    name: ClassVar[str] = "interface"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = (
        "NCCL_, GLOO_, TP_SOCKET_IFNAME that name no interface, one that is down, or one without an address"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        if all(surroundings.variable(name) is None for name in INTERFACE_VARIABLES):
            raise Inapplicable("no interface is named")
        interfaces = surroundings.sockets.interfaces()
        return tuple(
            record
            for variable in INTERFACE_VARIABLES
            for environment, value in places_of(surroundings, variable)
            if "\r" not in value
            for record in self._one(environment.place, variable, value.strip(), interfaces)
        )

    def _one(self, place: str, variable: str, value: str, interfaces: tuple[Interface, ...]) -> Iterator[FindingRecord]:
        if (variable != "NCCL_SOCKET_IFNAME" and value[:1] in ("^", "=")) or value[:1] in ("'", '"'):
            return  # wrong_syntax tells it
        chosen = select(variable, value, interfaces)
        usable = [one for one in chosen if one.is_up and one.addresses]
        have = ", ".join(
            f"{one.name} ({', '.join(one.addresses)})" for one in interfaces if one.is_up and one.addresses
        )
        names = value.split(",") if variable != "NCCL_SOCKET_IFNAME" else []
        absent = [name for name in names if name and not any(one.name == name for one in usable)]
        if usable and not absent:
            return
        if usable:  # gloo makes a device of each
            chosen = [one for one in chosen if one.name in absent]
        if not chosen:
            which = f"{variable}={value}" + (f": {absent[0]}" if usable else "")
            seen = f"{which} matches no interface; here are {have or 'none'}."
        else:
            down = chosen[0]
            state = "has no address" if down.is_up else "is down"
            seen = f"{variable}={value}: {down.name} {state}; usable are {have or 'none'}."
        example = next(
            (one.name for one in interfaces if one.is_up and one.addresses and not one.name.startswith(_VIRTUAL)), ""
        )
        yield finding(
            self, "error", place,
            seen=seen,
            why="NCCL then finds \"no socket interface\" and ends, gloo \"Unable to find address\"; on nodes where the "
            "name exists ranks go on and wait.",
            remedy=f"export {variable}={example}, or unset it" if example else f"unset {variable}",
            source="NCCL user guide, NCCL_SOCKET_IFNAME",
        )  # fmt: skip


def select(variable: str, value: str, interfaces: tuple[Interface, ...]) -> list[Interface]:
    """Interfaces that a value means: NCCL takes prefixes, "^" excludes, "=" is exact; the others take plain names."""
    if variable != "NCCL_SOCKET_IFNAME":
        names = value.split(",")
        return [one for one in interfaces if one.name in names]
    excludes = value.startswith("^")
    value = value.removeprefix("^")
    exact = value.startswith("=")
    words = [word.split(":")[0] for word in value.removeprefix("=").split(",") if word]

    def meant(name: str) -> bool:
        return any(name == word if exact else name.startswith(word) for word in words)

    return [one for one in interfaces if meant(one.name) != excludes]


class Loopback:
    """Connects this node to itself, at 127.0.0.1 and at its first own IPv4 address; an error where that fails."""

    name: ClassVar[str] = "loopback"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = "a loopback interface that is down, or a firewall between the ranks of this node"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        own = [
            address
            for one in surroundings.sockets.interfaces()
            for address in one.addresses
            if one.is_up and ":" not in address and not is_loopback(address)
        ]
        found = []
        for address in ("127.0.0.1", *own[:1]):
            error = surroundings.sockets.connects_to_itself(address)
            if error:
                found.append(
                    finding(
                        self, "error", address,
                        seen=f"This node cannot connect to itself at {address}: {error}.",
                        why="Ranks of one node meet at this address: the store, gloo and NCCL's bootstrap wait until "
                        "they time out.",
                        remedy="ip link set lo up" if address == "127.0.0.1" and "unreachable" in error.lower()
                        else "allow the loopback interface in the firewall (iptables -I INPUT -i lo -j ACCEPT; nft, "
                        "firewalld: zone trusted for lo), and look for SELinux (ausearch -m avc -ts recent); do not "
                        "switch them off"
                        + (f". {address_words(address).remedy}" if kind_of_address(address) == "container" else ""),
                    )
                )  # fmt: skip
        return tuple(found)


class FabricPorts:
    """By /sys/class/infiniband; Inapplicable without an adapter. A second port without a cable is usual, and not
    told."""

    name: ClassVar[str] = "infiniband"
    area: ClassVar[Area] = "network"
    looks_for: ClassVar[str] = (
        "InfiniBand or RoCE ports that are not active, adapters that NCCL_IB_HCA names and are not there"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        ports = infiniband_ports(surroundings)
        if not ports:
            raise Inapplicable("no InfiniBand or RoCE adapter")
        found = list(self._named(surroundings, ports))
        active = [port for port in ports if port.is_active]
        for port in ports:
            # A second port without a cable is usual; one that trains, or an adapter among active siblings, is not.
            initialising = "INIT" in port.state or "ARMED" in port.state or "Polling" not in port.physical
            if not port.is_active and (initialising or not active) and "Disabled" not in port.physical:
                found.append(
                    finding(
                        self, "warning" if spans_nodes(surroundings) is not False else "info",
                        f"{port.adapter} port {port.port}",
                        seen=f"The port is {port.state} (physically {port.physical or 'unknown'}, {port.link_layer}).",
                        why="NCCL leaves it out, or nodes choose different ports and wait for each other.",
                        remedy="ibstat; check the cable and, with InfiniBand, that a subnet manager runs; leave it "
                        f"out: export NCCL_IB_HCA=^={port.adapter}:{port.port}",
                    )
                )  # fmt: skip
        return tuple(found)

    def _named(self, surroundings: Surroundings, ports: tuple[Port, ...]) -> Iterator[FindingRecord]:
        for environment, value in places_of(surroundings, "NCCL_IB_HCA"):
            if value.startswith("^"):
                continue
            exact = value.startswith("=")
            for word in value.lstrip("=").split(","):
                adapter = word.split(":")[0]
                known = {port.adapter for port in ports}
                if adapter and not any(name == adapter if exact else name.startswith(adapter) for name in known):
                    yield finding(
                        self, "error", environment.place,
                        seen=f"NCCL_IB_HCA={value}: there is no {adapter}; here are {', '.join(sorted(known))}.",
                        why="NCCL falls back to sockets on this node only: slow, or a hang where the others use "
                        "InfiniBand.",
                        remedy="export NCCL_IB_HCA==" + ",".join(usable)
                        if (usable := sorted({port.adapter for port in ports if port.is_active}))
                        else "unset NCCL_IB_HCA",
                        source="NCCL user guide, NCCL_IB_HCA",
                    )  # fmt: skip
