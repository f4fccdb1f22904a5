"""What an address that was not reached says by itself: the own loopback, a container's network, or between nodes."""

import ipaddress
import re
from typing import Final, Literal, NamedTuple

AddressKind = Literal["loopback", "container", "link_local", "between_nodes"]


class AddressWords(NamedTuple):
    """What an address means, and what to do about it."""

    why: str
    remedy: str


# Networks that container engines choose when nobody asks: Docker's bridges (172.17 and the rest of its pool), Podman's
# (10.88), slirp4netns' and QEMU's (10.0.2).
_OF_CONTAINERS: Final = tuple(map(ipaddress.ip_network, ("172.16.0.0/12", "10.88.0.0/16", "10.0.2.0/24")))
_WORDS: Final[dict[AddressKind, AddressWords]] = {
    "loopback": AddressWords(
        "The address is this node's own loopback: ranks of one node meet there, other nodes never do. A firewall that "
        "filters lo, or SELinux, stops it on this node; a peer that had died before does too.",
        "ip link show lo; iptables -I INPUT -i lo -j ACCEPT (firewalld: zone trusted for lo); ausearch -m avc -ts "
        "recent for SELinux; with several nodes set MASTER_ADDR and NCCL_SOCKET_IFNAME to the network between them",
    ),
    "container": AddressWords(
        "The address lies in a network that container engines make for one host: other nodes, and containers without "
        "that bridge, do not reach it.",
        "start the containers with --network=host --ipc=host (Kubernetes: hostNetwork: true, or a second interface); "
        "or export NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME=<the interface between the nodes>; where the network "
        "itself is meant, its interface must be routed on every node",
    ),
    "link_local": AddressWords(
        "The address is link-local: it is valid on one cable only, and the peer may have another one there.",
        "export NCCL_SOCKET_IFNAME=<the interface between the nodes>; NCCL_SOCKET_FAMILY=AF_INET where IPv6 is not set "
        "up",
    ),
    "between_nodes": AddressWords(
        "The address is another node's: an interface that is no way between the nodes, a firewall between them, or a "
        "peer that was gone.",
        "ip route get <address>; nc -zv <address> <port>; let the firewall pass the subnet of the training network; "
        "export NCCL_SOCKET_IFNAME=<the interface between the nodes>",
    ),
}
# As NCCL ("Connect to 10.0.0.1<45234> failed"), gloo ("remote=[127.0.0.1]:4711") and c10d ("[node7]:29500",
# "to (10.0.0.1, 29500)", "host 10.0.0.1:29500") write a peer's address.
_V4: Final = r"\d{1,3}(?:\.\d{1,3}){3}"
_V6: Final = r"(?:::ffff:)?(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}"
_ADDRESS: Final = r"(?P<address>(?:::ffff:)?V4|V6|localhost)(?:%\w+)?".replace("V4", _V4).replace("V6", _V6)
_PEERS: Final = tuple(
    re.compile(pattern.replace("ADDRESS", _ADDRESS))
    for pattern in (
        r"[Cc]onnect(?:ing|ion)? (?:to|from) (?:address )?ADDRESS<", r"remote=\[ADDRESS\]", r"\[ADDRESS\]:\d+",
        r"\(ADDRESS, \d+\)", r"(?:to|host) ADDRESS:\d+", r"peer ADDRESS<", r"ADDRESS<\d+>",
    )
)  # fmt: skip


def is_loopback(host: str) -> bool:
    """Whether an address, or "localhost", is this very node's to itself; no other name is by its text."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def kind_of_address(address: str) -> AddressKind:
    """Given an address, or "localhost", return what its network is for; a name is between nodes."""
    if address.lower() == "localhost":
        return "loopback"
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0].strip("[]"))
    except ValueError:
        return "between_nodes"
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if parsed.is_loopback or parsed.is_unspecified:
        return "loopback"
    if parsed.is_link_local:
        return "link_local"
    return "container" if any(parsed in network for network in _OF_CONTAINERS) else "between_nodes"


def address_words(address: str) -> AddressWords:
    """Given an address, return why it may not have been reached, and what to do."""
    return _WORDS[kind_of_address(address)]


def peer_address(text: str) -> str:
    """Given a line of NCCL, gloo or c10d about a connection, return the peer's address; "" when it names none."""
    for pattern in _PEERS:
        if match := pattern.search(text):
            return match["address"]
    return ""
