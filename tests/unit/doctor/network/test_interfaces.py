import pytest

from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.network.interfaces import FabricPorts, InterfaceExists, Loopback
from stallwatch.doctor.surroundings import Question
from tests.unit.doctor.fakes import FakeSockets, Node, one


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("NCCL_SOCKET_IFNAME", "bond0", "matches no interface"),
        ("NCCL_SOCKET_IFNAME", "=eth", "matches no interface"),
        ("NCCL_SOCKET_IFNAME", "^eth,lo,ib", "matches no interface"),
        ("NCCL_SOCKET_IFNAME", "=ib0", "ib0 has no address"),
        ("NCCL_SOCKET_IFNAME", "eth1", "eth1 is down"),
        ("GLOO_SOCKET_IFNAME", "eth", "matches no interface"),
        ("GLOO_SOCKET_IFNAME", "ib0", "ib0 has no address"),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", "eth1 is down"),
        ("GLOO_SOCKET_IFNAME", "eth0,eth7", "eth0,eth7: eth7 matches no interface"),
    ],
)
def test_an_interface_that_cannot_serve_is_told_with_one_that_can(node: Node, name: str, value: str, seen: str) -> None:
    found = one(InterfaceExists().look(node.around({name: value})))
    assert found.severity == "error"
    assert seen in found.seen
    assert f"export {name}=eth0" in found.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker"),
        ("NCCL_SOCKET_IFNAME", "^=eth1"),
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("GLOO_SOCKET_IFNAME", "lo,eth0"),
        ("GLOO_SOCKET_IFNAME", "^lo"),  # its syntax is another check's
    ],
)
def test_an_interface_that_serves_is_silent(node: Node, name: str, value: str) -> None:
    assert InterfaceExists().look(node.around({name: value})) == ()


def test_without_a_named_interface_there_is_nothing_to_look_at(node: Node) -> None:
    with pytest.raises(Inapplicable):
        InterfaceExists().look(node.around())


def test_a_firewall_on_the_loopback_is_told(node: Node) -> None:
    sockets = FakeSockets(unreachable={"127.0.0.1": "no answer within 1 s (packets are dropped)"})
    found = one(Loopback().look(node.around(sockets=sockets)))
    assert "iptables -I INPUT -i lo -j ACCEPT" in found.remedy
    assert Loopback().look(node.around()) == ()


def port(node: Node, adapter: str, state: str, physical: str = "5: LinkUp") -> None:
    for name, text in (("state", state), ("phys_state", physical), ("link_layer", "InfiniBand")):
        node.write(f"sys/class/infiniband/{adapter}/ports/1/{name}", text + "\n")


def test_a_port_that_hangs_in_training_is_told(node: Node) -> None:
    port(node, "mlx5_0", "4: ACTIVE")
    port(node, "mlx5_1", "2: INIT")
    found = one(FabricPorts().look(node.around()))
    assert found.subject == "mlx5_1 port 1"
    assert found.severity == "warning"


def test_a_port_without_a_cable_beside_an_active_one_is_usual(node: Node) -> None:
    port(node, "mlx5_0", "4: ACTIVE")
    port(node, "mlx5_1", "1: DOWN", "2: Polling")
    assert FabricPorts().look(node.around()) == ()


def test_an_adapter_that_is_named_and_absent_is_an_error(node: Node) -> None:
    port(node, "mlx5_0", "4: ACTIVE")
    found = one(FabricPorts().look(node.around({"NCCL_IB_HCA": "=mlx5_0,mlx5_7"})))
    assert found.severity == "error"
    assert found.remedy == "export NCCL_IB_HCA==mlx5_0"


def test_a_node_without_adapters_is_skipped(node: Node) -> None:
    with pytest.raises(Inapplicable):
        FabricPorts().look(node.around(question=Question(nodes=2)))


def test_what_is_usable_is_told_where_the_choice_leaves_nothing(node: Node) -> None:
    found = one(InterfaceExists().look(node.around({"NCCL_SOCKET_IFNAME": "^lo,eth0"})))
    assert "ib0 has no address; usable are lo (127.0.0.1, ::1), eth0 (10.0.0.1, fd00::1)." in found.seen
