import os
import socket

import pytest

from stallwatch.outputs.peers import Peer, peer_of


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_local_user_is_known_by_his_uid_whatever_address_he_shares(family: socket.AddressFamily) -> None:
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"{host}: {error.strerror}")
    with server, socket.create_connection(server.getsockname()[:2]) as client:
        accepted, _ = server.accept()
        with accepted:
            assert peer_of(accepted) == Peer(host, os.getuid())
            client.close()  # who closes has no uid: the kernel would say 0
            assert peer_of(accepted) == Peer(host)


def test_on_a_unix_socket_the_kernel_says_who_it_is() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        assert peer_of(here) == Peer("", os.getuid())


def test_one_that_is_gone_has_no_address() -> None:
    never = socket.socket()
    with never:
        assert peer_of(never) == Peer("")
