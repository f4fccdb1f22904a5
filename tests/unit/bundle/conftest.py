"""An incident on disk as a test may spoil it: a bundle, and a folder of dumps."""

import shutil
from pathlib import Path

import pytest

_NCCL = Path(__file__).parents[2] / "bundles/nccl-tp_dp"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(_NCCL, tmp_path / "incident"))


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Dumps as torch leaves them, of one recorder each."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(4):
        source = _NCCL / "ranks" / str(rank) / "flight_recorder.nccl-2.pickle"
        shutil.copy(source, folder / f"nccl_trace_rank_{rank}")
    return folder
