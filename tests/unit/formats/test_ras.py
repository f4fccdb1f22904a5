from pathlib import Path

import pytest

from stallwatch.formats.ras import parse
from stallwatch.formats.unreadable import Unreadable

BUNDLES = Path(__file__).parents[2] / "bundles"
KILLED = BUNDLES / "nccl-killed" / "nodes" / "node0"


def test_json_of_2_28_9_lacks_a_comma_and_is_read() -> None:
    data = (KILLED / "nccl_ras.json").read_bytes()
    assert b'"nvml_dev": 2\n          "status"' in data, "the capture shows the defect"
    (communicator,) = parse(data)
    assert communicator.size == 4
    assert [rank.rank for rank in communicator.ranks] == [0, 1, 2, 3]
    assert [(rank.rank, rank.missing, rank.dead) for rank in communicator.ranks if rank.missing] == [(2, True, False)]


def test_counts_of_launches_by_operation() -> None:
    communicators = parse((BUNDLES / "nccl-tp_dp" / "nodes" / "node0" / "nccl_ras.json").read_bytes())
    assert [communicator.size for communicator in communicators] == [2, 2, 2, 2]
    counts = [dict(rank.counts)["AllReduce"] for communicator in communicators for rank in communicator.ranks]
    assert len(set(counts)) > 1


def test_report_for_people_names_the_outliers() -> None:
    communicators = parse((BUNDLES / "nccl-tp_dp" / "nodes" / "node0" / "nccl_ras.txt").read_bytes())
    assert [rank.counts for rank in communicators[0].ranks] == [
        (("AllGather", 44), ("AllReduce", 44)),
        (("AllGather", 42), ("AllReduce", 42)),
    ]
    (killed,) = parse((KILLED / "nccl_ras.txt").read_bytes())
    assert [(rank.rank, rank.missing) for rank in killed.ranks] == [(2, True)]
    assert killed.size == 4


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"ERROR: no such command", b'{"communicators": '])
def test_what_is_no_report_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(data)
