"""/proc/net/tcp and tcp6: who listens, what is in TIME_WAIT. Pure parsing."""

import ipaddress
from collections.abc import Iterator
from typing import NamedTuple

LISTEN, TIME_WAIT, ESTABLISHED = 0x0A, 0x06, 0x01


class TcpSocket(NamedTuple):
    """One line of the kernel's table: local address and port, state as the kernel numbers it, owner, inode."""

    address: str
    port: int
    state: int
    uid: int
    inode: int


def parse_tcp(text: str) -> Iterator[TcpSocket]:
    """Lines of proc_pid_net(5): local address and port in hexadecimal, addresses in words of the host's byte order."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or ":" not in fields[1]:
            continue
        address, port = fields[1].rsplit(":", 1)
        try:
            yield TcpSocket(_address(address), int(port, 16), int(fields[3], 16), int(fields[7]), int(fields[9]))
        except ValueError:
            continue


def _address(text: str) -> str:
    raw = bytes.fromhex(text)
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return str(ipaddress.ip_address(swapped))
