"""State and counters of InfiniBand and Ethernet ports by sysfs. Some drivers ask the firmware for every read: it may
take milliseconds, and for ever when the card is sick, so it has a thread of its own."""

import os
from collections.abc import Iterator

from stallwatch.formats.outside_text import name_of
from stallwatch.model.snapshot import NetworkPort

# What explains a hang or a slow fabric: links that go down, packets that are lost, repeated or held back.
_INFINIBAND = (
    *("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "port_xmit_discards", "port_xmit_wait"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_rcv_remote_physical_errors"),
    *("port_rcv_data", "port_xmit_data"),
)
# hw_counters of mlx5 (RoCE and InfiniBand): retransmission, time-outs, congestion.
_INFINIBAND_HARDWARE = (
    *("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "out_of_buffer", "rnr_nak_retry_err"),
    *("implied_nak_seq_err", "rp_cnp_handled", "np_cnp_sent", "roce_adp_retrans", "req_cqe_error", "resp_cqe_error"),
)
_ETHERNET = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_bytes", "tx_bytes")
_MOST_PORTS = 128
# Devices without hardware below: bridges, containers' pairs, tunnels.
_VIRTUAL = "/virtual/"


def read_ports(sys: str = "/sys") -> tuple[NetworkPort, ...]:
    """Return every port that has hardware below it; a node without InfiniBand has only Ethernet."""
    return tuple([*_infiniband(f"{sys}/class/infiniband"), *_ethernet(f"{sys}/class/net")][:_MOST_PORTS])


def _infiniband(directory: str) -> Iterator[NetworkPort]:
    for device in _names(directory):
        for number in _names(f"{directory}/{device}/ports"):
            port = f"{directory}/{device}/ports/{number}"
            if not (number.isascii() and number.isdecimal()):
                continue
            layer = _text(f"{port}/link_layer").lower() or "infiniband"
            yield NetworkPort(
                device=name_of(device),
                port=int(number),
                kind=layer,
                state=_text(f"{port}/state").rpartition(":")[2].strip().lower() or "unknown",  # "4: ACTIVE"
                counters=(
                    *_counters(f"{port}/counters", _INFINIBAND),
                    *_counters(f"{port}/hw_counters", _INFINIBAND_HARDWARE),
                ),
            )


def _ethernet(directory: str) -> Iterator[NetworkPort]:
    for device in _names(directory):
        path = f"{directory}/{device}"
        try:
            if _VIRTUAL in os.readlink(path):
                continue
        except OSError:
            continue  # "bonding_masters" is a file
        yield NetworkPort(
            device=name_of(device),
            port=1,
            kind="ethernet",
            state=_text(f"{path}/operstate") or "unknown",
            counters=(
                *_counters(f"{path}/statistics", _ETHERNET),
                *_counters(path, ("carrier_changes",)),
            ),
        )


def _counters(directory: str, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    for name in names:
        value = _number(_text(f"{directory}/{name}"))
        if value is not None:
            yield name, value


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return name_of(file.read(4096).strip())
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdecimal() else None
