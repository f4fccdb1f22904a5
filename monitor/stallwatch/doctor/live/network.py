"""DNS and sockets of this node."""

import errno
import os
import socket
import threading

import psutil

from stallwatch.doctor.live.lost import Promise
from stallwatch.doctor.surroundings import Interface, Lookup, Reach
from stallwatch.model.reading import Known, Unavailable

_LOOKUP_SECONDS = 3.0
_CONNECT_SECONDS = 1.0  # a node of the same network that is up answers within milliseconds
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL)


class DnsResolver:
    """getaddrinfo, each name once, in a thread that may be lost."""

    def __init__(self, seconds: float = _LOOKUP_SECONDS) -> None:
        self._seconds = seconds
        self._asked: dict[str, Promise[Lookup]] = {}
        self._lock = threading.Lock()

    def lookup(self, name: str) -> Known[Lookup] | Unavailable:
        """Return the addresses of a name, or the resolver's error; Unavailable where it has not answered in time."""
        with self._lock:
            promise = self._asked.get(name)
            if promise is None:
                promise = Promise(lambda: _lookup(name), self._seconds, f"DNS, asked for {name},")
                self._asked[name] = promise
        return promise.get()


def _lookup(name: str) -> Lookup:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Lookup((), str(getattr(error, "strerror", None) or error))
    return Lookup(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))


def _source(family: int, address: str, port: int) -> str:
    """The own address that packets would leave from; a datagram socket asks for the route and sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


class NodeSockets:
    """Satisfies doctor.surroundings.Sockets with the sockets and interfaces of this node."""

    def interfaces(self) -> tuple[Interface, ...]:
        """Return every network interface with its IPv4 and IPv6 addresses."""
        addresses, stats = psutil.net_if_addrs(), psutil.net_if_stats()
        return tuple(
            Interface(
                name=name,
                is_up=name in stats and stats[name].isup,
                addresses=tuple(one.address for one in known if one.family in (socket.AF_INET, socket.AF_INET6)),
            )
            for name, known in addresses.items()
        )

    def can_listen(self, port: int) -> str:
        """IPv6 where there is any, as torch's store, else IPv4."""
        error = ""
        for family in (socket.AF_INET6, socket.AF_INET):
            try:
                with socket.socket(family, socket.SOCK_STREAM) as listener:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind(("", port))
                    listener.listen(1)
                    return ""
            except OSError as failure:
                if failure.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) and family == socket.AF_INET6:
                    continue
                error = os.strerror(failure.errno) if failure.errno else str(failure)
        return error

    def free_port(self) -> int:
        """Return a TCP port that nobody holds now; another program may take it before it is used."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("", 0))
            return int(listener.getsockname()[1])

    def connects_to(self, address: str, port: int) -> Reach:
        """Connect once, say nothing and hang up; return how that ended, with the own address that the route chooses."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        source = _source(family, address, port)
        try:
            with socket.socket(family, socket.SOCK_STREAM) as client:
                client.settimeout(_CONNECT_SECONDS)
                client.connect((address, port))
                return Reach("open", source=source)
        except TimeoutError:
            return Reach("silent", source=source, seconds=_CONNECT_SECONDS)
        except ConnectionRefusedError:
            return Reach("refused", source=source)
        except OSError as failure:
            error = os.strerror(failure.errno) if failure.errno else str(failure)
            return Reach("no_route" if failure.errno in _NO_ROUTE else "error", error, source)

    def connects_to_itself(self, address: str) -> str:
        """Listen at an own IPv4 address and connect to it; return the error, "" when it works."""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
                listener.bind((address, 0))
                listener.listen(1)
                with socket.create_connection(listener.getsockname(), timeout=_CONNECT_SECONDS):
                    return ""
        except TimeoutError:
            return f"no answer within {_CONNECT_SECONDS:g} s (packets are dropped)"
        except OSError as failure:
            return os.strerror(failure.errno) if failure.errno else str(failure)
