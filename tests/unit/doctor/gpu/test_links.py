import struct

import pytest

from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.gpu.links import FabricReady, PcieWidth, PeerRedirect, Topology, acs_control
from tests.unit.doctor.fakes import FakeGpus, Node, gpus, one

BRIDGE, GPU = "0000:00:01.0", "0000:01:00.0"


def test_a_fabric_that_is_not_ready_names_the_fabric_manager(node: Node) -> None:
    found = one(FabricReady().look(node.around(gpus=FakeGpus(gpus({"fabric": (2, 0)})))))
    assert found.severity == "error"
    assert "nvidia-fabricmanager" in found.remedy


def test_links_that_are_down_are_told(node: Node) -> None:
    found = one(FabricReady().look(node.around(gpus=FakeGpus(gpus({"nvlinks": (16, 2)})))))
    assert "2 of 18 NVLinks are down" in found.seen


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"fabric": (0, 0)},
        {"fabric": None},
        {"nvlinks": (0, 18)},
        {"nvlinks": None},
    ],
)
def test_a_sound_or_absent_fabric_is_silent(node: Node, change: dict[str, object]) -> None:
    assert FabricReady().look(node.around(gpus=FakeGpus(gpus(change)))) == ()


def test_a_narrow_link_is_told_when_siblings_have_more(node: Node) -> None:
    assert "8 of 16 lanes" in one(PcieWidth().look(node.around(gpus=FakeGpus(gpus({"pcie_link": (5, 8)}))))).seen
    assert PcieWidth().look(node.around(gpus=FakeGpus(gpus({"pcie_link": (5, 8)}, {"pcie_link": (5, 8)})))) == ()


def test_gpus_that_meet_across_sockets_only_are_mentioned(node: Node) -> None:
    plain = {"nvlinks": None}
    assert "0–1" in one(Topology().look(node.around(gpus=FakeGpus(gpus(plain, plain, topology=((0, 1, 50),)))))).seen
    assert Topology().look(node.around(gpus=FakeGpus(gpus(plain, plain, topology=((0, 1, 20),))))) == ()
    assert Topology().look(node.around(gpus=FakeGpus(gpus(topology=((0, 1, 50),))))) == ()
    with pytest.raises(Inapplicable):
        Topology().look(node.around(gpus=FakeGpus(gpus(count=1))))


def config_space(acs: int) -> bytes:
    """256 bytes, then an AER capability that leads to ACS."""
    space = bytearray(512)
    struct.pack_into("<I", space, 0x100, 0x148 << 20 | 1 << 16 | 0x0001)
    struct.pack_into("<IHH", space, 0x148, 1 << 16 | 0x000D, 0x5F, acs)
    return bytes(space)


def test_the_acs_register_is_found_in_the_chain() -> None:
    assert acs_control(config_space(0x1D)) == 0x1D
    assert acs_control(bytes(512)) == 0
    assert acs_control(bytes(64)) == 0  # what other users may read


def bridge(node: Node, acs: int) -> None:
    root = "sys/devices/pci0000:00"
    node.write(f"{root}/{BRIDGE}/class", "0x060400\n")
    node.write(f"{root}/{BRIDGE}/config", config_space(acs))
    node.write(f"{root}/{BRIDGE}/{GPU}/vendor", "0x10de\n")
    node.write(f"{root}/{BRIDGE}/{GPU}/class", "0x030200\n")
    links = node.root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    for name, target in ((BRIDGE, f"{root}/{BRIDGE}"), (GPU, f"{root}/{BRIDGE}/{GPU}")):
        if not (links / name).exists():
            (links / name).symlink_to(node.root / target)


def test_acs_that_redirects_is_told_with_its_bridge(node: Node) -> None:
    bridge(node, 0x1D)
    found = one(PeerRedirect().look(node.around(gpus=FakeGpus(gpus()))))
    assert found.subject == f"PCIe bridges {BRIDGE}"


def test_acs_that_is_off_is_silent_and_a_virtual_machine_is_skipped(node: Node) -> None:
    bridge(node, 0x01)
    assert PeerRedirect().look(node.around(gpus=FakeGpus(gpus()))) == ()
    node.write("proc/cpuinfo", "flags : fpu hypervisor\n")
    with pytest.raises(Inapplicable):
        PeerRedirect().look(node.around(gpus=FakeGpus(gpus())))


def test_an_iommu_that_translates_is_mentioned(node: Node) -> None:
    (node.root / "sys/kernel/iommu_groups/0").mkdir(parents=True)
    assert "iommu=pt" in one(PeerRedirect().look(node.around(gpus=FakeGpus(gpus())))).remedy
    node.write("proc/cmdline", "quiet iommu=pt")
    assert PeerRedirect().look(node.around(gpus=FakeGpus(gpus()))) == ()
