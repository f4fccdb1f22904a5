import pytest

from stallwatch.formats.addresses import address_words, is_loopback, kind_of_address, peer_address


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"), ("127.1.2.3", "loopback"), ("::1", "loopback"), ("localhost", "loopback"),
        ("::ffff:127.0.0.1", "loopback"), ("172.17.0.2", "container"), ("172.31.255.1", "container"),
        ("10.88.0.7", "container"), ("10.0.2.15", "container"), ("172.32.0.1", "between_nodes"),
        ("10.0.3.1", "between_nodes"), ("192.168.1.4", "between_nodes"), ("fd00::7", "between_nodes"),
        ("169.254.3.4", "link_local"), ("fe80::1%eth0", "link_local"), ("node7", "between_nodes"),
    ],
)  # fmt: skip
def test_addresses_are_told_apart_by_their_networks(address: str, kind: str) -> None:
    assert kind_of_address(address) == kind


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("socketStartConnect: Connect to 172.17.0.2<45234> failed : Connection refused", "172.17.0.2"),
        ("socketPollConnect: connect to fe80::ec4:7aff:fe0c%eno1<37831> returned No route to host",
         "fe80::ec4:7aff:fe0c"),
        ("SO_ERROR: Connection refused, remote=[127.0.0.1]:33211", "127.0.0.1"),
        ("The client socket has failed to connect to [10.0.0.4]:29500 (errno: 110 - Connection timed out).",
         "10.0.0.4"),
        ("The client socket has timed out after 60s while trying to connect to (10.88.0.3, 29500).", "10.88.0.3"),
        ("TCP client failed to connect/validate to host 10.1.2.3:29500 - timed out", "10.1.2.3"),
        ("Connection closed by peer [::ffff:10.0.2.15]:41000", "::ffff:10.0.2.15"),
        ("The client socket has failed to connect to [localhost]:29500", "localhost"),
        ("no address in this line, 1:2", ""),
    ],
)  # fmt: skip
def test_the_peers_address_is_read_as_every_library_writes_it(line: str, address: str) -> None:
    assert peer_address(line) == address


def test_each_kind_has_its_own_advice() -> None:
    assert "SELinux" in address_words("127.0.0.1").remedy
    assert "--network=host --ipc=host" in address_words("172.17.0.2").remedy
    assert "subnet" in address_words("10.9.8.7").remedy


@pytest.mark.parametrize(
    ("host", "is_so"),
    [("127.0.0.1", True), ("::1%lo", True), ("localhost", True), ("10.0.0.1", False), ("node-7", False), ("", False)],
)
def test_what_leads_to_this_very_node(host: str, is_so: bool) -> None:
    assert is_loopback(host) is is_so
