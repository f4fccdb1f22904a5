import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch.errors import UsageError
from stallwatch.outputs.sockets import listen_tcp, listen_unix, split_address


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a socket's path has 107 bytes, and pytest's own folders are long."""
    with tempfile.TemporaryDirectory(prefix="sw-") as made:
        yield Path(made)


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9477", ("127.0.0.1", 9477)),
        ("[::1]:80", ("::1", 80)),
        (":9477", ("0.0.0.0", 9477)),
        ("node:0", ("node", 0)),
    ],
)
def test_an_address_is_host_and_port(listen: str, address: tuple[str, int]) -> None:
    assert split_address(listen) == address


@pytest.mark.parametrize("listen", ["9477", "host:", "host:http", "host:99999", "host:-1"])
def test_another_form_is_refused_by_the_key(listen: str) -> None:
    with pytest.raises(UsageError, match=r"http\.listen"):
        split_address(listen)


def test_a_port_in_use_is_refused_with_the_key_to_change() -> None:
    with listen_tcp("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="in use") as refusal:
            listen_tcp(f"127.0.0.1:{port}")
    assert "http.listen" in refusal.value.help
    assert refusal.value.exit_code == 64


def test_the_control_socket_is_for_owner_and_group_alone_from_its_first_moment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "control.sock"
    born: list[int] = []
    chmod = os.chmod

    def watched(target: Path, mode: int) -> None:
        born.append(path.stat().st_mode & 0o777)
        chmod(target, mode)

    monkeypatch.setattr(os, "chmod", watched)
    old = os.umask(0)
    try:
        with listen_unix(path, ""):
            assert path.stat().st_mode & 0o777 == 0o660
        assert born == [0o660]
    finally:
        os.umask(old)


def test_a_dead_daemons_socket_is_replaced_and_a_living_ones_is_not(folder: Path) -> None:
    path = folder / "control.sock"
    listen_unix(path, "").close()  # its file stays
    with listen_unix(path, ""):
        with pytest.raises(UsageError, match="another stallwatch daemon answers"):
            listen_unix(path, "")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_something_else_in_its_place_is_left_alone(folder: Path) -> None:
    (folder / "control.sock").write_text("mine")
    with pytest.raises(UsageError, match="is no socket"):
        listen_unix(folder / "control.sock", "")
    assert (folder / "control.sock").read_text() == "mine"


def test_an_unknown_group_a_long_path_and_a_missing_folder_are_refused_with_advice(folder: Path) -> None:
    with pytest.raises(UsageError, match="no group"):
        listen_unix(folder / "a.sock", "no-such-group-here")
    with pytest.raises(UsageError, match="107 bytes"):
        listen_unix(folder / ("x" * 120), "")
    with pytest.raises(UsageError) as refusal:
        listen_unix(folder / "none" / "control.sock", "")
    assert "daemon.run_directory" in refusal.value.help
