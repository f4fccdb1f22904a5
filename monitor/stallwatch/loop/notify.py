"""Talk to systemd: ready, alive, stopping. Nothing happens where systemd did not ask."""

import os
import socket
from collections.abc import Mapping


class ServiceManager:
    """Tells systemd that the daemon is ready and lives."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")

    def say(self, *lines: str) -> None:
        """Send "READY=1", "WATCHDOG=1", "STATUS=…", "STOPPING=1"; a systemd that does not listen is not our trouble."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto("\n".join(lines).encode(), address)
        except OSError:
            return


def take_from(environment: Mapping[str, str]) -> ServiceManager:
    """Return the service manager and hide its socket from our children: only the loop may feed the watchdog."""
    manager = ServiceManager(environment)
    os.environ.pop("NOTIFY_SOCKET", None)
    return manager
