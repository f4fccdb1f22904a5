"""Meeting places of fleet_nodes.py's nodes, and what may be wrong with them: a redis-server, and a directory on a file
system of its own."""

import contextlib
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Protocol

from tests.builders.redis_server import start_redis

NET = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
HOST = f"{NET}.1"
_DISK_MIB = 24
_THAWED_SECONDS = 0.2  # of a file system that is slow: long enough for some of what waits


class Engine(Protocol):
    """A meeting place that can be spoiled."""

    @property
    def url(self) -> str:
        """As the nodes are told it."""

    def prepare(self) -> None:
        """What must be there before the nodes are."""

    def start(self) -> None:
        """It answers, from now on or again."""

    def stop(self) -> None:
        """It answers nobody."""

    def answer_after(self, seconds: float) -> None:
        """Each of its answers takes so long."""

    def fill(self) -> None:
        """It has no room for anything more."""

    def mend(self) -> None:
        """It has room again."""

    def obey_nobody(self) -> None:
        """It may be read and not written."""

    def holders(self) -> list[str]:
        """Which nodes have claimed an incident; incident 0 is the job's pace."""

    def end(self) -> None:
        """Leave nothing behind."""


class Redis:
    """A redis-server; where it is full it evicts nothing, where it is read-only it is a replica without a primary."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 7000 + os.getpid() % 2000
        self.process: subprocess.Popen[bytes] | None = None
        self._asked_at = self.port  # by the nodes

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self._asked_at}"

    def prepare(self) -> None:
        return

    def start(self) -> None:
        self.process = start_redis(self.folder, "--port", str(self.port), "--requirepass", "secret", bind=HOST)

    def answer_after(self, seconds: float) -> None:
        """Nodes ask it through another port."""
        listener = socket.create_server((HOST, 0))
        self._asked_at = listener.getsockname()[1]

        def hand_on(source: socket.socket, sink: socket.socket, after: float) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    time.sleep(after)
                    sink.sendall(data)
            sink.close()

        def serve() -> None:
            while True:
                node, _ = listener.accept()
                server = socket.create_connection((HOST, self.port))
                for pair in ((node, server, 0.0), (server, node, seconds)):
                    threading.Thread(target=hand_on, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()

    def _said(self, *words: str) -> str:
        command = ("redis-cli", "--no-auth-warning", "-h", HOST, "-p", str(self.port), "-a", "secret", *words)
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    def _ask(self, *words: str) -> None:
        for _ in range(100):  # it may be starting
            if (said := self._said(*words)) == "OK":
                return
            time.sleep(0.1)
        raise OSError(f"{words}: {said}")

    def fill(self) -> None:
        self._ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        self._ask("CONFIG", "SET", "maxmemory", "1")

    def mend(self) -> None:
        self._ask("CONFIG", "SET", "maxmemory", "0")

    def obey_nobody(self) -> None:
        self._ask("REPLICAOF", "127.0.0.1", "1")

    def holders(self) -> list[str]:
        return [self._said("GET", key) for key in self._said("KEYS", "*:claim").split() if ":0:" not in key]

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None

    def end(self) -> None:
        self.stop()


class Disk:
    """A directory of an ext4 of its own (root, a loop device). Frozen it answers nobody, as a file server that is gone:
    who asks waits in the kernel. Slow it is frozen but for moments."""

    def __init__(self, folder: Path) -> None:
        self._image, self._mount = folder / "shared.img", folder / "shared"
        self.meeting = self._mount / "meeting"
        self._frozen = False
        self._freezes = threading.Lock()
        self._over = threading.Event()

    @property
    def url(self) -> str:
        return f"file://{self.meeting}"

    def prepare(self) -> None:
        with self._image.open("wb") as file:
            file.truncate(_DISK_MIB << 20)
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        self._mount.mkdir()
        _run("mount", "-o", "loop,noatime", str(self._image), str(self._mount))
        self.meeting.mkdir(mode=0o700)

    def _freeze(self, frozen: bool) -> None:
        with self._freezes:
            if frozen != self._frozen:
                _run("fsfreeze", "-f" if frozen else "-u", str(self._mount))
                self._frozen = frozen

    def start(self) -> None:
        self._freeze(False)

    def stop(self) -> None:
        self._freeze(True)

    def answer_after(self, seconds: float) -> None:
        def serve() -> None:
            while not self._over.is_set():
                self._freeze(True)
                self._over.wait(seconds)
                self._freeze(False)
                self._over.wait(_THAWED_SECONDS)

        threading.Thread(target=serve, daemon=True).start()

    def fill(self) -> None:
        with (self._mount / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)

    def mend(self) -> None:
        (self._mount / "filler").unlink()

    def obey_nobody(self) -> None:
        _run("mount", "-o", "remount,ro", str(self._mount))

    def holders(self) -> list[str]:
        return [path.read_text() for path in self.meeting.glob("**/[1-9]*/claim.*")]

    def end(self) -> None:
        self._over.set()
        with contextlib.suppress(Exception):
            self._freeze(False)
        with contextlib.suppress(Exception):
            _run("umount", "--lazy", str(self._mount))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
