"""The two listening sockets, opened before anything else so that a daemon that cannot be reached does not start."""

import contextlib
import errno
import grp
import os
import socket
import stat
from pathlib import Path

from stallwatch.errors import UsageError
from stallwatch.formats.tcp_table import LISTEN, parse_tcp

SOCKET_NAME = "control.sock"  # in daemon.run_directory

_LONGEST_PATH = 107  # sun_path of unix(7), less its closing zero


class HeldByAnother(UsageError):
    """A user of the node listens at the address, neither root nor ours: he may have come before us on purpose."""


def split_address(listen: str) -> tuple[str, int]:
    """Given http.listen as host:port or [v6]:port, return both. Raise UsageError when it is neither."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f"http.listen: {listen!r} is not host:port",
            "For instance 127.0.0.1:9477, 0.0.0.0:9477 or [::1]:9477; empty for none.",
        )
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  an empty host is what ":9477" means everywhere


def listen_tcp(listen: str) -> socket.socket:
    """A listening socket at an address; raise UsageError with advice where there can be none."""
    host, port = split_address(listen)
    advice = (
        f"Set http.listen (STALLWATCH_HTTP_LISTEN) to another host:port. `ss -ltnp 'sport = :{port}'` says who has it."
    )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"http.listen {listen}: {host} is no address of a host: {error.strerror}", advice) from error
    server = socket.socket(family, kind, protocol)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen(128)
    except OSError as error:
        server.close()
        holder = _listening_user(port) if error.errno == errno.EADDRINUSE else None
        if holder not in (None, 0, os.geteuid()):
            raise HeldByAnother(f"http.listen {listen}: {error.strerror}, by uid {holder}", advice) from error
        if error.errno == errno.EACCES:
            advice = "Ports below 1024 need a privilege; set http.listen to a higher one."
        raise UsageError(f"http.listen {listen}: {error.strerror}", advice) from error
    return server


def _listening_user(port: int) -> int | None:
    """Whose socket listens at a TCP port of this node; None where nobody's does."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/self/net/{name}", encoding="ascii") as file:
            for found in parse_tcp(file.read()):
                if found.state == LISTEN and found.port == port:
                    return found.uid
    return None


def listen_unix(path: Path, group: str, mode: int = 0o660) -> socket.socket:
    """A control socket, for its owner and `group` alone unless `mode` says otherwise. Raise UsageError when another
    daemon answers there."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise UsageError(
            f"{path}: a socket's path may have {_LONGEST_PATH} bytes at most",
            "Set daemon.run_directory (STALLWATCH_DAEMON_RUN_DIRECTORY) to a shorter path.",
        )
    make_way(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # On Linux the file takes its mode from the socket: it is never open to others, not even for a moment.
        os.fchmod(server.fileno(), mode)
        server.bind(os.fspath(path))
        if group:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
        os.chmod(path, mode)
        server.listen(64)
    except KeyError as error:
        server.close()
        raise UsageError(
            f"http.socket_group: no group {group!r} here", f"`groupadd --system {group}` makes it."
        ) from error
    except OSError as error:
        server.close()
        raise UsageError(
            f"{path}: {error.strerror}",
            "Set daemon.run_directory (STALLWATCH_DAEMON_RUN_DIRECTORY) to one that the daemon's user can write.",
        ) from error
    return server


def make_way(path: Path) -> None:
    """Remove what a daemon before us left there. Raise UsageError when one answers."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path} is in the way and is no socket", "Move it away, or set daemon.run_directory.")
    except OSError:
        return  # nothing there, or binding will say what is wrong
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()  # its daemon is gone
            return
        except OSError:
            pass  # full backlog, or not ours to open: somebody may live there
    raise UsageError(
        f"{path}: another stallwatch daemon answers there",
        "Stop it, or set daemon.run_directory (STALLWATCH_DAEMON_RUN_DIRECTORY) to another directory.",
    )
