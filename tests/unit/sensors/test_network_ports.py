from pathlib import Path

from stallwatch.model.snapshot import NetworkPort
from stallwatch.sensors.network_ports import read_ports


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def test_infiniband_port_has_its_state_and_the_counters_that_are_there(tmp_path: Path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    write(port, state="4: ACTIVE", link_layer="InfiniBand")
    write(port / "counters", link_downed="2", symbol_error="0", unknown_to_us="5")
    write(port / "hw_counters", local_ack_timeout_err="9")
    assert read_ports(str(tmp_path)) == (
        NetworkPort(
            device="mlx5_0",
            port=1,
            kind="infiniband",
            state="active",
            counters=(("link_downed", 2), ("symbol_error", 0), ("local_ack_timeout_err", 9)),
        ),
    )


def test_ethernet_port_with_hardware_is_read_and_a_virtual_one_is_not(tmp_path: Path) -> None:
    hardware = tmp_path / "devices/pci0000:00/net/eth0"
    write(hardware, operstate="up", carrier_changes="4")
    write(hardware / "statistics", rx_errors="1", rx_bytes="10")
    write(tmp_path / "devices/virtual/net/veth1", operstate="up")
    net = tmp_path / "class/net"
    net.mkdir(parents=True)
    (net / "eth0").symlink_to("../../devices/pci0000:00/net/eth0")
    (net / "veth1").symlink_to("../../devices/virtual/net/veth1")
    (net / "bonding_masters").write_text("")
    (port,) = read_ports(str(tmp_path))
    assert (port.device, port.state) == ("eth0", "up")
    assert dict(port.counters) == {"rx_errors": 1, "rx_bytes": 10, "carrier_changes": 4}


def test_a_link_that_is_down_without_counters_is_a_port_all_the_same(tmp_path: Path) -> None:
    hardware = tmp_path / "devices/pci/net/eth0"
    write(hardware, operstate="down")
    (tmp_path / "class/net").mkdir(parents=True)
    (tmp_path / "class/net/eth0").symlink_to("../../devices/pci/net/eth0")
    (port,) = read_ports(str(tmp_path))
    assert (port.state, port.counters) == ("down", ())


def test_node_without_either_has_no_ports(tmp_path: Path) -> None:
    assert read_ports(str(tmp_path)) == ()
