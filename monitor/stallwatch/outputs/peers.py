"""Who is at the other end of a connection: a local user where the kernel tells, else an address."""

import ipaddress
import pwd
import socket
import struct

import msgspec

from stallwatch.formats.tcp_table import ESTABLISHED

_SECONDS = 0.2  # the kernel answers within microseconds

# linux/sock_diag.h, linux/inet_diag.h: SOCK_DIAG_BY_FAMILY for one socket, named by its two ends.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 20, 1
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states; then the socket's id
_PORTS, _ANY_COOKIE = struct.Struct("!HH"), b"\xff" * 8
_STATE_AT, _UID_AT, _ANSWER_BYTES = 1, 64, 72  # of struct inet_diag_msg: state; uid and inode


class Peer(msgspec.Struct, frozen=True):
    """Equal for connections that share a budget."""

    address: str  # "" on a unix socket; of IPv6 its /64 where it is not a local one: one host has all of that
    uid: int | None = None

    def __str__(self) -> str:
        return self.address if self.uid is None else f"uid {self.uid} {self.address}".rstrip()

    def user(self) -> str:
        """The name of the local user; may ask a directory service, and block."""
        if self.uid is None:
            return ""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"


def peer_of(connection: socket.socket) -> Peer:
    """Given an accepted connection, return who opened it; who has gone already has an empty address."""
    try:
        if connection.family == socket.AF_UNIX:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return Peer("", struct.unpack("3i", credentials)[1])
        there, here = connection.getpeername(), connection.getsockname()
    except OSError:
        return Peer("")
    address = ipaddress.ip_address(there[0].partition("%")[0])
    is_local = address.is_loopback or there[0] == here[0]
    if is_local:
        return Peer(str(address), _uid_of(connection.family, there, here))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return Peer(str(ipaddress.ip_network((address, 64), strict=False)))
    return Peer(str(address))


def _uid_of(family: int, there: tuple[str, int], here: tuple[str, int]) -> int | None:
    """Return whose socket this machine has at the other end; None where it has none, or nobody holds it any more."""
    ends = _PORTS.pack(there[1], here[1]) + _packed(family, there[0]) + _packed(family, here[0])
    asked = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + struct.pack("=I", 0) + _ANY_COOKIE
    head = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_SECONDS)
            kernel.send(head + asked)
            answer = kernel.recv(8192)
    except OSError:
        return None  # a sandbox without netlink, or no handle left: the address has to do
    told = answer[_HEADER.size :]
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY or len(told) < _ANSWER_BYTES:
        return None
    uid, inode = struct.unpack_from("=II", told, _UID_AT)
    # A socket that its process has closed is nobody's, and the kernel says uid 0.
    return int(uid) if told[_STATE_AT] == ESTABLISHED and inode else None


def _packed(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0")
