"""/proc/net/tcp and tcp6: who listens, who is connected to whom, what is in TIME_WAIT. Pure parsing."""

import ipaddress
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

LISTEN, TIME_WAIT, ESTABLISHED = 0x0A, 0x06, 0x01


class TcpSocket(NamedTuple):
    """One line of the kernel's table: local address and port, state as the kernel numbers it, owner, inode; the other
    end, all zeros and 0 where there is none."""

    address: str
    port: int
    state: int
    uid: int
    inode: int
    peer_address: str = "0.0.0.0"  # noqa: S104 - nobody listens at it
    peer_port: int = 0


def parse_tcp(text: str) -> Iterator[TcpSocket]:
    """Lines of proc_pid_net(5): local address and port in hexadecimal, addresses in words of the host's byte order."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or ":" not in fields[1]:
            continue
        (address, _, port), (peer, _, peer_port) = fields[1].rpartition(":"), fields[2].rpartition(":")
        try:
            yield TcpSocket(
                _address(address),
                int(port, 16),
                int(fields[3], 16),
                int(fields[7]),
                int(fields[9]),
                _address(peer),
                int(peer_port, 16),
            )
        except ValueError:
            continue


@lru_cache(maxsize=1024)
def _address(text: str) -> str:
    """Of IPv6's the IPv4 address that it stands for, where it does."""
    raw = bytes.fromhex(text)
    words = (raw[at : at + 4] for at in range(0, len(raw), 4))
    address = ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
