"""Ranks that another launcher started: no parent of ours, each ends itself and says what it knows."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stallwatch
from stallwatch.selftest.launching import free_port

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the ranks run torch"),
]


def start(rank: int, world_size: int, port: int, folder: Path) -> subprocess.Popen[str]:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "STALLWATCH_DIR": str(folder)}
    source = {"PYTHONPATH": str(Path(stallwatch.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "stallwatch.selftest.rank", "--backend=gloo", "--most-bytes=64", "--step-seconds=8"],
        env=dict(os.environ) | place | where | source,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_all_ranks_present_are_all_right(tmp_path: Path) -> None:
    port = free_port()
    ranks = [start(rank, 2, port, tmp_path) for rank in range(2)]
    words = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], words
    assert "2 ranks" in words[0]
    assert "all right" in words[0]


def test_a_missing_rank_is_named_by_every_other(tmp_path: Path) -> None:
    port = free_port()
    ranks = [start(rank, 3, port, tmp_path) for rank in range(2)]
    words = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [10, 10], words
    assert all("rank 2 never came" in text or "does not answer" in text for text in words), words
    assert any("rank 2 never came" in text for text in words), words
