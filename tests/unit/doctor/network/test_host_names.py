import pytest

from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.network.host_names import AddressFamily, HostName, MasterAddress
from stallwatch.doctor.surroundings import Interface, Question
from tests.unit.doctor.fakes import FakeResolver, FakeSockets, Node, one

SEVERAL = Question(nodes=2)


def test_a_master_address_that_does_not_resolve_is_named(node: Node) -> None:
    found = one(MasterAddress().look(node.around({"MASTER_ADDR": "nod1"})))
    assert found.severity == "error"
    assert "MASTER_ADDR=nod1 does not resolve: Name or service not known" in found.seen


def test_a_resolver_that_does_not_answer_is_itself_a_finding(node: Node) -> None:
    around = node.around({"MASTER_ADDR": "node1"}, resolver=FakeResolver(silent=True))
    assert "DNS has not answered for 3 s" in one(MasterAddress().look(around)).seen
    assert "DNS has not answered for 3 s" in one(HostName().look(around)).seen


def test_a_master_address_that_resolves_is_silent(node: Node) -> None:
    assert MasterAddress().look(node.around({"MASTER_ADDR": "node1"}, question=SEVERAL)) == ()
    with pytest.raises(Inapplicable):
        MasterAddress().look(node.around())


def test_a_loopback_master_address_is_an_error_for_several_nodes_only(node: Node) -> None:
    names = FakeResolver({"head": ("127.0.1.1",)})
    several = node.around({"MASTER_ADDR": "head"}, question=SEVERAL, resolver=names)
    assert one(MasterAddress().look(several)).severity == "error"
    assert MasterAddress().look(node.around({"MASTER_ADDR": "head"}, resolver=names)) == ()


@pytest.mark.parametrize(
    ("addresses", "alone", "several"), [((), "info", "warning"), (("127.0.1.1",), "info", "error")]
)
def test_an_own_name_that_peers_cannot_use_counts_where_there_are_peers(
    node: Node, addresses: tuple[str, ...], alone: str, several: str
) -> None:
    names = FakeResolver({"node1": addresses})
    assert one(HostName().look(node.around(resolver=names))).severity == alone
    assert one(HostName().look(node.around(resolver=names, question=SEVERAL))).severity == several
    assert HostName().look(node.around({"GLOO_SOCKET_IFNAME": "eth0"}, resolver=names, question=SEVERAL)) == ()


def test_an_own_name_with_a_real_address_is_silent(node: Node) -> None:
    assert HostName().look(node.around(question=SEVERAL)) == ()


def test_ipv6_first_without_ipv6_is_told_with_the_ipv4_address(node: Node) -> None:
    names = FakeResolver({"head": ("2001:db8::1", "10.0.0.9")})
    four = FakeSockets((Interface("eth0", True, ("10.0.0.1", "fe80::1")),))
    found = one(AddressFamily().look(node.around({"MASTER_ADDR": "head"}, resolver=names, sockets=four)))
    assert (found.severity, found.remedy) == ("warning", "export MASTER_ADDR=10.0.0.9")
    assert AddressFamily().look(node.around({"MASTER_ADDR": "head"}, resolver=names)) == ()
