"""A peer that cannot be reached, in words of its address."""

import re
from ipaddress import ip_address, ip_network
from typing import Final

from stallwatch.diagnosis.logs.remedies_by_text import Words

_ADDRESS: Final = re.compile(r"(?:onnect to |remote peer )\[?(?P<address>[0-9a-fA-F.:]+?)\]?[<%:\s]")
_LOOPBACK: Final = Words(
    "NCCL tells the ranks of this node each other's loopback address, and something there refuses or ends the "
    "connection: a local firewall, SELinux, or a process that was gone. Between nodes that address leads nowhere.",
    "one node: `iptables -L -n`, `getenforce` and `ausearch -m avc` for what blocks lo; several nodes: set "
    "NCCL_SOCKET_IFNAME to the interface between them, and let the host's name resolve to its address",
)
_CONTAINER: Final = Words(
    "The address is one of a container's own network (docker0, podman, a virtual bridge): other nodes, and often other "
    "containers, cannot reach it.",
    "run the ranks in the host's network (docker run --network=host --ipc=host), or export "
    "NCCL_SOCKET_IFNAME=<the interface between the nodes>",
)
_BETWEEN_NODES: Final = Words(
    "NCCL told this rank an address that it cannot reach: an interface that is no way between the nodes (a virtual "
    "bridge, link-local IPv6), a firewall, or a peer that was gone.",
    "export NCCL_SOCKET_IFNAME=<the interface between the nodes>, and let the firewall pass its subnet; nc -zv to that "
    "address",
)
_CONTAINERS: Final = tuple(ip_network(net) for net in ("172.16.0.0/12", "10.88.0.0/16", "10.0.2.0/24"))


def connect_words(text: str) -> Words:
    """Given NCCL's line, return what it means by the address in it."""
    match = _ADDRESS.search(text)
    try:
        address = ip_address(match["address"]) if match else None
    except ValueError:
        address = None
    if address is None:
        return _BETWEEN_NODES
    if address.is_loopback:
        return _LOOPBACK
    inside = address.version == 4 and any(address in net for net in _CONTAINERS)
    return _CONTAINER if inside else _BETWEEN_NODES
