"""Control groups of a process: whose quota of the CPU is used up."""

from pathlib import Path

import pytest

from stallwatch.node.cgroups import periods


@pytest.mark.parametrize(
    ("membership", "controllers"),
    [
        ("0::/job/rank\n", ""),
        ("4:cpu,cpuacct:/job/rank\n3:memory:/other\n", "cpu,cpuacct"),
        ("1:cpu:/job/rank\n", "cpu"),
    ],
    ids=["version 2", "version 1", "cpu alone"],
)
def test_a_quota_may_be_of_any_group_above(tmp_path: Path, membership: str, controllers: str) -> None:
    top = tmp_path / controllers
    (top / "job" / "rank").mkdir(parents=True)
    (top / "job" / "rank" / "cpu.stat").write_text("nr_periods 5\nnr_throttled 0\nthrottled_time 0\n")
    (top / "job" / "cpu.stat").write_text("nr_periods 9\nnr_throttled 4\nthrottled_time 7\n")
    (top / "cpu.stat").write_text("usage_usec 3\n")
    assert periods(membership, str(tmp_path)) == {f"{top}/job/rank": (5, 0), f"{top}/job": (9, 4)}


@pytest.mark.parametrize("membership", ["", "0::/../../elsewhere\n", "7:pids:/job\n", "0::/job\n"])
def test_where_no_quota_can_be_seen_there_is_none(tmp_path: Path, membership: str) -> None:
    assert periods(membership, str(tmp_path)) == {}
