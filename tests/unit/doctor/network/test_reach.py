import socket
from typing import Any

import pytest

from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.live.network import NodeSockets
from stallwatch.doctor.network.reach import MasterReachable
from stallwatch.doctor.surroundings import Reach, Surroundings
from tests.unit.doctor.fakes import FakeResolver, FakeSockets, Node, one, rank

MASTER = {"MASTER_ADDR": "node9", "MASTER_PORT": "29511"}


def around(node: Node, reach: Reach, address: str = "10.0.0.9", **changes: Any) -> Surroundings:
    return node.around(
        MASTER,
        resolver=FakeResolver({"node1": ("10.0.0.1",), "node9": (address,)}),
        sockets=FakeSockets(reaches={(address, 29511): reach}),
        **changes,
    )


def test_a_store_that_answers_is_silent(node: Node) -> None:
    assert MasterReachable().look(around(node, Reach("open"))) == ()


def test_a_refusal_is_only_mentioned_before_a_start(node: Node) -> None:
    found = one(MasterReachable().look(around(node, Reach("refused"))))
    assert found.severity == "info"
    assert "Nobody listens at node9 (10.0.0.9):29511" in found.seen
    assert "Rank 0 is not up" in found.why


def test_a_refusal_while_ranks_wait_is_a_warning(node: Node) -> None:
    waiting = rank(1, environment=MASTER)
    assert one(MasterReachable().look(around(node, Reach("refused"), ranks=(waiting,)))).severity == "warning"


def test_a_missing_route_is_an_error_with_the_command_that_shows_it(node: Node) -> None:
    found = one(MasterReachable().look(around(node, Reach("no_route", "No route to host"))))
    assert (found.severity, "no route to node9 (10.0.0.9):29511: No route to host" in found.seen) == ("error", True)
    assert "ip route get 10.0.0.9" in found.remedy


def test_silence_names_the_interface_that_packets_leave_by(node: Node) -> None:
    found = one(MasterReachable().look(around(node, Reach("silent", source="10.0.0.1", seconds=1.0))))
    assert "no answer within 1 s (packets leave by eth0, 10.0.0.1)" in found.seen
    assert "firewall" in found.why


@pytest.mark.parametrize(
    ("address", "words"),
    [("172.17.0.4", "--network=host --ipc=host"), ("10.0.0.9", "between the nodes"), ("127.0.0.2", "SELinux")],
)
def test_the_words_are_those_of_the_address(node: Node, address: str, words: str) -> None:
    assert words in one(MasterReachable().look(around(node, Reach("silent", seconds=1.0), address))).remedy


def test_what_cannot_be_asked_is_left_alone(node: Node) -> None:
    with pytest.raises(Inapplicable):
        MasterReachable().look(node.around({"MASTER_ADDR": "node1"}))
    with pytest.raises(Inapplicable):
        MasterReachable().look(node.around({"MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}))
    with pytest.raises(Undetermined):
        MasterReachable().look(node.around({"MASTER_ADDR": "node1", "MASTER_PORT": "x"}))


def test_a_real_port_that_listens_and_one_that_does_not_are_told_apart() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert NodeSockets().connects_to("127.0.0.1", port).outcome == "refused"
        listener.listen(1)
        assert NodeSockets().connects_to("127.0.0.1", port) == Reach("open", source="127.0.0.1")
