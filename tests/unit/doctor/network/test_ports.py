import os

import pytest

from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.network.ports import MasterPort, RasPort
from stallwatch.formats.tcp_table import TcpSocket, parse_tcp
from tests.unit.doctor.fakes import TCP_HEAD, FakeResolver, FakeSockets, Node, one, rank, tcp_line

LISTEN, TIME_WAIT = "0A", "06"
JOB = {"MASTER_ADDR": "node1", "MASTER_PORT": "29400"}


def process(
    node: Node,
    pid: int,
    command: str,
    *,
    socket: int = 0,
    state: str = "S",
    parent: int = 50,
    thread: int = 0,
    **env: str,
) -> None:
    """A process in the fake /proc that holds a socket; a zombie's descriptors are those of its other thread."""
    name = command.split()[0]
    node.write(f"proc/{pid}/stat", f"{pid} ({name}) {state} {parent} " + "0 " * 48)
    node.write(f"proc/{pid}/cmdline", "" if state == "Z" else command.replace(" ", "\0") + "\0")
    node.write(f"proc/{pid}/environ", "".join(f"{key}={value}\0" for key, value in env.items()))
    if socket:
        folder = node.root / (f"proc/{pid}/task/{thread}/fd" if thread else f"proc/{pid}/fd")
        folder.mkdir(parents=True)
        os.symlink(f"socket:[{socket}]", folder / "3")


def listens(node: Node, port: int, inode: int = 777) -> None:
    node.write("proc/net/tcp", TCP_HEAD + tcp_line(port, LISTEN, inode))


def test_the_kernels_table_is_read_with_ipv6() -> None:
    text = TCP_HEAD + tcp_line(29500, LISTEN, 5, address="0100007F") + "  garbage\n"
    text += tcp_line(80, TIME_WAIT, 0, address="00000000000000000000000001000000")
    assert list(parse_tcp(text)) == [TcpSocket("127.0.0.1", 29500, 10, 1000, 5), TcpSocket("::1", 80, 6, 1000, 0)]


def test_the_other_end_of_a_connection_is_read_as_ipv4_where_it_is_that() -> None:
    tail = "01 00000000:00000000 00:00000000 00000000  1000        0 5 1 x\n"
    text = TCP_HEAD + f"   1: 0600000A:9C40 0700000A:01BB {tail}"
    text += f"   2: 0000000000000000FFFF00000600000A:9C40 0000000000000000FFFF00000700000A:01BB {tail}"
    ends = [(found.address, found.peer_address, found.peer_port) for found in parse_tcp(text)]
    assert ends == [("10.0.0.6", "10.0.0.7", 443)] * 2


def test_the_holder_of_the_port_is_named_with_a_free_port(node: Node) -> None:
    listens(node, 29400)
    process(node, 812, "python server.py --token abc", socket=777)
    found = one(MasterPort().look(node.around(JOB)))
    assert found.severity == "error"
    assert "pid 812 (python server.py" in found.seen
    assert "abc" not in found.seen  # secrets of command lines stay where they are
    assert found.remedy.startswith("export MASTER_PORT=41234")


def test_a_stale_rank_is_told_from_any_process(node: Node) -> None:
    listens(node, 29400)
    process(node, 812, "python train.py", socket=777, parent=1, RANK="0")
    found = one(MasterPort().look(node.around(JOB)))
    assert "rank 0 of an earlier run, its launcher is gone" in found.seen
    assert found.remedy.startswith("kill 812; or export MASTER_PORT=41234")


@pytest.mark.parametrize(("parent", "is_stale"), [("containerd-shim", True), ("slurmstepd", False), ("python3", False)])
def test_a_rank_adopted_by_a_reaper_of_its_container_is_stale_too(node: Node, parent: str, is_stale: bool) -> None:
    listens(node, 29400)
    process(node, 40, parent)
    process(node, 812, "python train.py", socket=777, parent=40, RANK="0")
    found = one(MasterPort().look(node.around(JOB)))
    assert ("its launcher is gone" in found.seen) is is_stale


def test_a_zombie_holds_the_port_by_its_other_thread(node: Node) -> None:
    listens(node, 29400)
    process(node, 812, "python", socket=777, state="Z", thread=813)
    found = one(MasterPort().look(node.around(JOB)))
    assert "pid 812 ([python]), zombie: its main thread has ended" in found.seen


def test_a_holder_that_we_may_not_see_is_told_by_its_user(node: Node) -> None:
    listens(node, 29400)
    assert "a process of uid 1000 that is not visible" in one(MasterPort().look(node.around(JOB))).seen


def test_the_store_of_the_running_job_is_as_it_should_be(node: Node) -> None:
    listens(node, 29400)
    process(node, 99, "torchrun", socket=777)
    process(node, 100, "python train.py", parent=99)
    assert MasterPort().look(node.around(JOB, ranks=(rank(0),))) == ()


def test_the_default_port_taken_is_only_mentioned(node: Node) -> None:
    listens(node, 29500)
    assert one(MasterPort().look(node.around())).severity == "info"


def test_a_free_port_is_silent(node: Node) -> None:
    assert MasterPort().look(node.around(JOB)) == ()


def test_time_wait_is_explained_and_no_fault(node: Node) -> None:
    node.write("proc/net/tcp", TCP_HEAD + tcp_line(29400, TIME_WAIT, 0))
    found = one(MasterPort().look(node.around(JOB)))
    assert found.severity == "info"
    assert "TIME_WAIT" in found.seen


def test_a_port_that_cannot_be_bound_is_an_error(node: Node) -> None:
    sockets = FakeSockets(errors={29400: "Permission denied"})
    assert "Permission denied" in one(MasterPort().look(node.around(JOB, sockets=sockets))).seen


def test_the_port_of_another_node_is_not_ours_to_look_at(node: Node) -> None:
    listens(node, 29400)
    around = node.around(JOB | {"MASTER_ADDR": "node2"}, resolver=FakeResolver({"node2": ("10.0.0.2",)}))
    with pytest.raises(Inapplicable):
        MasterPort().look(around)


def test_ras_port_held_by_a_stranger_is_mentioned(node: Node) -> None:
    listens(node, 28028)
    process(node, 812, "nginx", socket=777)
    assert "28028 is held by pid 812 (nginx)" in one(RasPort().look(node.around())).seen


def test_ras_port_of_a_rank_is_silent(node: Node) -> None:
    assert RasPort().look(node.around()) == ()
    listens(node, 28028)
    process(node, 812, "python train.py", socket=777, RANK="0")
    assert RasPort().look(node.around()) == ()
