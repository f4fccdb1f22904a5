import pytest

from stallwatch.doctor.check_result import FindingRecord
from stallwatch.doctor.environment.files import NamedFiles
from tests.unit.doctor.fakes import FakeGpus, Node, gpus, one, rank


def look(node: Node, name: str, value: str, **others: str) -> tuple[FindingRecord, ...]:
    return NamedFiles().look(node.around({name: value, **others}, gpus=FakeGpus(gpus())))


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("NCCL_TOPO_FILE", "/opt/topo.xml", "warning"),
        ("NCCL_TOPO_FILE", "~/topo.xml", "warning"),
        ("NCCL_GRAPH_FILE", "/opt/graph.xml", "error"),
        ("NCCL_GRAPH_FILE", "", "error"),
        ("NCCL_CONF_FILE", "/opt/nccl.conf", "warning"),
        ("NCCL_NET_PLUGIN", "aws-ofi", "warning"),
        ("NCCL_NET_PLUGIN", "/opt/libnccl-net.so", "warning"),
        ("NCCL_TUNER_PLUGIN", "libnccl-ofi-tuner.so", "warning"),
        ("LD_PRELOAD", "/opt/libnccl.so.2", "warning"),
    ],
)
def test_a_file_that_is_not_there_is_told(node: Node, name: str, value: str, severity: str) -> None:
    found = one(look(node, name, value))
    assert (found.severity, f"{name}={value}" in found.seen) == (severity, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_TOPO_FILE", "/opt/topo.xml"), ("NCCL_TOPO_FILE", ""), ("NCCL_CONF_FILE", "nccl.conf"),
        ("NCCL_NET_PLUGIN", "none"), ("NCCL_NET_PLUGIN", "aws-ofi"), ("NCCL_NET_PLUGIN", "cached"),
        ("NCCL_TUNER_PLUGIN", "/opt/lib/libnccl-net-aws-ofi.so"), ("LD_PRELOAD", "libtcmalloc.so $LIB/x.so"),
    ],
)  # fmt: skip
def test_a_file_that_is_there_or_that_nobody_can_look_for_is_not(node: Node, name: str, value: str) -> None:
    node.write("opt/topo.xml", "<system/>")
    node.write("opt/lib/libnccl-net-aws-ofi.so", "")
    node.write("etc/ld.so.cache", b"\0libnccl-net-cached.so\0/x/libnccl-net-cached.so\0")
    assert look(node, name, value, LD_LIBRARY_PATH="/opt/lib") == ()


def test_a_node_without_gpus_need_not_have_them(node: Node) -> None:
    around = node.around({"NCCL_NET_PLUGIN": "aws-ofi"})
    assert one(NamedFiles().look(around)).severity == "info"


def test_files_of_a_rank_in_a_container_are_not_looked_for_here(node: Node) -> None:
    (node.root / "proc/self/ns").mkdir(parents=True)
    (node.root / "proc/self/ns/mnt").symlink_to("mnt:[1]")
    ranks = tuple(rank(number, environment={"NCCL_TOPO_FILE": "/opt/topo.xml"}) for number in range(2))
    for one_rank, namespace in zip(ranks, ("mnt:[1]", "mnt:[2]"), strict=True):
        folder = node.root / f"proc/{one_rank.pid}/ns"
        folder.mkdir(parents=True)
        (folder / "mnt").symlink_to(namespace)
    around = node.around(ranks=ranks, gpus=FakeGpus(gpus()))
    assert one(NamedFiles().look(around)).subject == "rank 0 (pid 100)"
