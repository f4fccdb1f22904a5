import os
import socket
from pathlib import Path

from stallwatch.loop.notify import ServiceManager, take_from


def test_systemd_hears_what_is_said(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        ServiceManager({"NOTIFY_SOCKET": address}).say("READY=1", "STATUS=watching")
        assert listener.recv(100) == b"READY=1\nSTATUS=watching"


def test_an_abstract_address_is_understood() -> None:
    name = f"stallwatch-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        ServiceManager({"NOTIFY_SOCKET": "@" + name}).say("WATCHDOG=1")
        assert listener.recv(100) == b"WATCHDOG=1"


def test_nobody_listening_is_no_trouble(tmp_path: Path) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).say("READY=1")
    ServiceManager({}).say("READY=1")


def test_children_do_not_inherit_the_socket(tmp_path: Path, monkeypatch: object) -> None:
    os.environ["NOTIFY_SOCKET"] = str(tmp_path / "notify")
    take_from(os.environ)
    assert "NOTIFY_SOCKET" not in os.environ
